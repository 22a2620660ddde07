//! The `zmove` binary. All code is in the library.

fn main() -> ! {
    zmove_cli::main()
}
