"""Machine code for recorded steps: matrix products, convolutions and elementwise passes for shapes known beforehand."""
