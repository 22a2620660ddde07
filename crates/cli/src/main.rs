//! The `zmove` binary. All code is in the library.

fn main() -> std::process::ExitCode {
    zmove_cli::main()
}
