"""Compiles the kernels and prints the result."""

from rondo.base.errors import RondoError
from rondo.ops.native.build.ahead import compile_all, lost, runs


def main() -> None:
    try:
        compile_all()
    except RondoError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"kernels: {lost() or runs('fp32')}")


if __name__ == "__main__":
    main()
