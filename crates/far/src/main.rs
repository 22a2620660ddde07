//! The `zmove-far` binary. All code is in the library.

fn main() -> ! {
    zmove_far::program::main()
}
