//! The arguments of `zmove status`, `zmove stop` and `zmove drain`, which talk to the daemon of this host.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct ControlArgs {
    /// Path of the daemon's socket
    ///
    /// [default: control.sock in the daemon's state directory, else /run/zmove/control.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Print a JSON object on one line
    #[arg(long)]
    pub(crate) json: bool,
    /// Refresh every second until you press Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// The transfer's ID in 'zmove status', or its first 4 or more digits
    #[arg(value_name = "ID", required = true, value_parser = parse_digits)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// Wait until the daemon has exited
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
}

/// Minimum number of digits of an ID. A shorter prefix with a typo could stop another transfer.
const DIGITS_MIN: usize = 4;

fn parse_digits(text: &str) -> Result<String, String> {
    let digits = text.to_ascii_lowercase();
    if digits.len() < DIGITS_MIN || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!(
            "'{text}' is not a transfer id: write at least {DIGITS_MIN} hexadecimal digits"
        ));
    }
    Ok(digits)
}
