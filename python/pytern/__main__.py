# SPDX-License-Identifier: Apache-2.0
"""`python3 -m pytern` prints the compiler's options for a C program that uses the headers and the library of this
package: cc program.c $(python3 -m pytern)"""
from pathlib import Path


def main() -> None:
    folder = Path(__file__).resolve().parent
    print(f"-I{folder}/include -L{folder} -l:libtern.so.0.1 -Wl,-rpath,{folder}")


main()
