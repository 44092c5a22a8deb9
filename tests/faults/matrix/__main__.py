"""Write what is observed now into docs/failures.md."""

from tests.faults.matrix.observe import observe_all
from tests.faults.matrix.page import PAGE, rewrite

if __name__ == "__main__":
    rewrite(observe_all())
    print(f"{PAGE.name} is written.")
