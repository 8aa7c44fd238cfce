#!/usr/bin/python3
"""A translator of addresses (NAT) for TCP connections, in user space: it passes the bytes of each connection on to
HOST:PORT over one of its own, and prints a line for each. After SIGUSR1 its table is empty: the connections that it has
then carry no byte any more, and neither end is told. Ends when it is killed.

    translator.py PORT_FILE HOST PORT
"""

import selectors
import signal
import socket
import sys
from pathlib import Path

BYTES = 1 << 16


class Translator:
    def __init__(self, host, port):
        self.target = (host, port)
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("", 0))
        self.peers = {}      # {socket: the one that its bytes go to}
        self.forgotten = []  # stay open: a closed one would tell its end
        self.accepted = 0

    def accept(self):
        inner, _ = self.listener.accept()
        outer = socket.create_connection(self.target)
        for one, other in ((inner, outer), (outer, inner)):
            self.peers[one] = other
            self.selector.register(one, selectors.EVENT_READ, self.carry)
        self.accepted += 1
        print(f"connection {self.accepted}", flush=True)

    def carry(self, one):
        other = self.peers[one]
        try:
            data = one.recv(BYTES)
            if data:
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            for each in (one, other):
                self.selector.unregister(each)
                del self.peers[each]
                each.close()

    def forget(self):
        for each in self.peers:
            self.selector.unregister(each)
        self.forgotten += self.peers
        self.peers = {}
        print(f"forgets {len(self.forgotten) // 2} connections", flush=True)

    def run(self, port_file):
        woken, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        self.selector.register(woken, selectors.EVENT_READ)
        self.selector.register(self.listener, selectors.EVENT_READ)
        Path(port_file).write_text(str(self.listener.getsockname()[1]))
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is woken:
                    woken.recv(BYTES)
                    self.forget()
                elif key.fileobj is self.listener:
                    self.accept()
                elif key.fileobj in self.peers:  # its other end may just have ended it
                    self.carry(key.fileobj)


if __name__ == "__main__":
    Translator(sys.argv[2], int(sys.argv[3])).run(sys.argv[1])
