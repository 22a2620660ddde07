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
    /// Receiver, written as for 'push'; with a path, its storage is swept too
    ///
    /// HOST, HOST:PATH, HOST:PORT:PATH, USER@HOST:PATH (over ssh).
    #[arg(value_name = "HOST[:PATH]")]
    pub(crate) host: OsString,
    /// Numbers of connections, one round for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,16", num_args = 1,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) streams: Vec<u16>,
    /// Duration of each round, 1s to 20s
    ///
    /// It starts after the windows of the connections have grown.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_round)]
    pub(crate) time: Duration,
    /// Predict the duration of a push of this tree
    #[arg(long = "for", value_name = "TREE")]
    pub(crate) tree: Option<PathBuf>,
    /// Local directory whose storage is swept too
    ///
    /// This takes a few seconds. [default: the result of an earlier 'zmove sweep' for TREE]
    #[arg(long, value_name = "DIR")]
    pub(crate) source: Option<PathBuf>,
    /// Do not sweep the receiver's storage
    #[arg(long)]
    pub(crate) no_sweep: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dial: DialArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

/// Parses the duration of one measurement. The duration is limited, because a path reaches its full rate within
/// seconds, and a receiver waits only a few minutes.
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
