//! The `zmove` binary; everything is in the library.

fn main() -> std::process::ExitCode {
    zmove_cli::main()
}
