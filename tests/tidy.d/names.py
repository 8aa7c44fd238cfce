"""Python names that no scope defines: the interpreter finds them only when the line runs."""

import builtins
import re
import symtable

OF_MODULES = {"__file__", "__name__", "__doc__", "__builtins__"}


def tables(table):
    yield table
    for inner in table.get_children():
        yield from tables(inner)


def check_names(report, path, text):
    try:
        module = symtable.symtable(text, path, "exec")
    except SyntaxError as error:
        report(path, error.lineno or 1, "python", f"this is no Python: {error.msg}")
        return
    known = OF_MODULES | set(dir(builtins))
    for table in tables(module):
        known |= {symbol.get_name() for symbol in table.get_symbols()
                  if (table is module or symbol.is_declared_global()) and
                  (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace())}
    for table in tables(module):
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_referenced() and (symbol.is_global() or table is module) and name not in known:
                lines = text.splitlines()
                at = next((i for i in range(table.get_lineno() - 1, len(lines))
                           if re.search(rf"\b{name}\b", lines[i])), table.get_lineno() - 1)
                report(path, at + 1, "python", f"{name} is defined nowhere: import or define it")
