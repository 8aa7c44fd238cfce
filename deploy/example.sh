# Shared by deploy/languages and deploy/digits, which source it from the root of the tree. Not a program.
#
#   example NAME [ARGUMENT…]: first refuses unknown arguments. Then installs missing packages, builds, and runs
#   deploy/NAME.py with the arguments. With --tables it installs only the data (deploy/install-deps NAME) and builds
#   nothing. Does not return.

# A signal ends the current stage and every process that it started (compilers, apt). Later the Python program handles
# signals.
child=
stopped() { # name, signal, its number
    trap - TERM INT
    [ -z "$child" ] || kill -TERM -- "-$child" 2>/dev/null || true
    wait
    echo "$1: stopped by $2" >&2
    exit $((128 + $3))
}
stage() {
    set -m
    "$@" &
    child=$!
    set +m
    wait "$child"
    child=
}

example() {
    local name=$1 argument tables=no
    shift
    for argument in "$@"; do
        case $argument in
        -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "deploy/$name"; exit 0 ;;
        --tables) tables=yes ;;
        --) break ;; # the rest is dpt-worker's
        *)
            printf '%s: unknown argument %q; --help lists those of %s; arguments of dpt-worker follow --\n' \
                "$name" "$argument" "deploy/$name" >&2
            exit 2
            ;;
        esac
    done
    trap 'stopped "$name" SIGTERM 15' TERM
    trap 'stopped "$name" SIGINT 2' INT
    if [ "$tables" = yes ]; then
        stage deploy/install-deps "$name"
    else
        stage deploy/install-deps build "$name"
        stage deploy/build release
    fi
    trap - TERM INT
    exec /usr/bin/python3 -B "deploy/$name.py" "$@"
}
