//! The arguments of `zmove probe`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::help;
use super::sweep::parse_time;
use crate::args::shared::dial::DialArgs;
use crate::args::shared::storage::StorageArgs;

#[derive(Debug, clap::Args)]
#[command(after_long_help = help::PROBE_LONG)]
pub(crate) struct ProbeArgs {
    /// The receiver as 'push' takes it; with a path its storage there is swept too
    ///
    /// HOST, HOST:PATH, HOST:PORT:PATH, USER@HOST:PATH (over ssh).
    #[arg(value_name = "HOST[:PATH]")]
    pub(crate) host: OsString,
    /// Connections, one round for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,16", num_args = 1,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) streams: Vec<u16>,
    /// The time of each round, 1s to 20s
    ///
    /// It begins once the windows have grown.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_round)]
    pub(crate) time: Duration,
    /// Predict how long a push of this tree takes
    #[arg(long = "for", value_name = "TREE")]
    pub(crate) tree: Option<PathBuf>,
    /// A directory on this side's storage, to be swept
    ///
    /// It takes some seconds. [default: what an earlier 'zmove sweep' has found for TREE]
    #[arg(long, value_name = "DIR")]
    pub(crate) source: Option<PathBuf>,
    /// Do not sweep the receiver's storage
    #[arg(long)]
    pub(crate) no_sweep: bool,
    /// Print all of it as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dial: DialArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

/// Reads the time of a round, which is short: the limit of a path shows in seconds, and a receiver waits no longer than
/// minutes.
fn parse_round(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if time > ROUND_MAX {
        Err("a round is measured for 20 s at most".to_owned())
    } else {
        Ok(time)
    }
}

const ROUND_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_short() {
        assert_eq!(parse_round("3s"), Ok(Duration::from_secs(3)));
        assert!(parse_round("0s").is_err() && parse_round("21s").is_err());
    }
}
