"""python3 -m tendril: put, get and ls, for machines without the tendril command.

Exit codes: 0, 1 for an error, 3 without a daemon, 4 if there is no such object.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

from . import Disconnected, NotFound, TendrilError, connect


def main(argv: Optional[List[str]] = None) -> int:
    args = _parse(argv)
    try:
        with connect(args.socket) as store:
            return int(args.do(store, args) or 0)
    except NotFound as e:
        return _fail(e, 4)
    except Disconnected as e:
        return _fail(e, 3)
    except (TendrilError, OSError) as e:
        return _fail(e, 1)


def _fail(error: BaseException, code: int) -> int:
    print("tendril: %s" % error, file=sys.stderr)
    return code


def _parse(argv: Optional[List[str]]) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python3 -m tendril", description="Puts, gets and lists objects of the store.")
    p.add_argument("--socket", help="the daemon's socket (default: $TENDRIL_SOCKET, then the usual places)")
    verbs = p.add_subparsers(required=True, metavar="VERB")
    put = verbs.add_parser("put", help="store a file and print its id")
    put.add_argument("file", help="'-' is standard input, which needs --name")
    put.add_argument("--name", help="the object's name (default: the file's name without its folder)")
    put.set_defaults(do=_put)
    get = verbs.add_parser("get", help="write an object to standard output or a file")
    get.add_argument("key", metavar="NAME|ID", help="the object")
    get.add_argument("-o", "--output", metavar="FILE", help="where to write it (default: standard output)")
    get.add_argument("--wait", type=float, default=0.0, metavar="SECONDS",
                     help="how long to wait for the object (default: do not wait)")
    get.set_defaults(do=_get)
    ls = verbs.add_parser("ls", help="list objects: id, size in bytes, state, name")
    ls.add_argument("prefix", nargs="?", default="", help="only names that begin with it")
    ls.set_defaults(do=_ls)
    return p.parse_args(argv)


def _put(store, args) -> None:  # type: ignore[no-untyped-def]
    if args.file == "-":
        data, name = sys.stdin.buffer.read(), args.name
    else:
        with open(args.file, "rb") as f:
            data, name = f.read(), args.name or os.path.basename(args.file)
    if not name:
        raise TendrilError("standard input has no name: give one with --name")
    with store.put(data, name=name) as stored:
        print(stored.id)


def _get(store, args) -> None:  # type: ignore[no-untyped-def]
    with store.get(args.key, timeout=args.wait) as found:
        if args.output:
            with open(args.output, "wb") as f:
                f.write(found.data)
        else:
            sys.stdout.buffer.write(found.data)
            sys.stdout.buffer.flush()


def _ls(store, args) -> None:  # type: ignore[no-untyped-def]
    for o in store.objects(args.prefix):
        print("%s  %12d  %-9s  %s" % (o.id, o.size_bytes, o.state, o.name))


if __name__ == "__main__":
    sys.exit(main())
