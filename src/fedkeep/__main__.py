"""python -m fedkeep"""

from fedkeep.cli import main

if __name__ == "__main__":
    main()
