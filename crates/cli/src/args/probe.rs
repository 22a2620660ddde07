//! The arguments of `zmove probe`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::dial::DialArgs;
use super::storage::StorageArgs;
use super::sweep::parse_time;

#[derive(Debug, clap::Args)]
#[command(after_help = PROBE_HELP)]
pub(crate) struct ProbeArgs {
    /// The receiver as 'push' takes it, with or without a path: HOST, HOST:PATH, HOST:PORT:PATH,
    /// USER@HOST:PATH (over ssh). With a path its storage there is swept too
    #[arg(value_name = "HOST[:PATH]")]
    pub(crate) host: OsString,
    /// Data connections, one round for each number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,16", num_args = 1,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) streams: Vec<u16>,
    /// How long each round is measured once its windows have grown, 1s to 20s
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_round)]
    pub(crate) time: Duration,
    /// Predict how long a push of this tree takes
    #[arg(long = "for", value_name = "TREE")]
    pub(crate) tree: Option<PathBuf>,
    /// A directory on this side's storage, which is swept for some seconds [default: what an earlier 'zmove
    /// sweep' has found for TREE]
    #[arg(long, value_name = "DIR")]
    pub(crate) source: Option<PathBuf>,
    /// Do not sweep the receiver's storage
    #[arg(long)]
    pub(crate) no_sweep: bool,
    #[command(flatten)]
    pub(crate) dial: DialArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
    /// Print all of it as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const PROBE_HELP: &str = "\
The bytes come from memory, are encrypted, hashed and counted as those of a push, and thrown away: a
probe stores nothing. It fills the path for some seconds a round, which others on it will notice. The
receiver lets in whoever may write there, and holds the key to its rate. With a path it writes at most
256 MiB below it for 5 s, in a hidden directory that is removed. A prediction is the time of the
slowest of source storage, path and target storage for each class of sizes, as far as they are known.";

/// Reads the time of a round, which is short: the limit of a path shows in seconds, and a receiver waits no longer than
/// minutes.
fn parse_round(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if time > ROUND_MAX { Err("a round is measured for 20 s at most".to_owned()) } else { Ok(time) }
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
