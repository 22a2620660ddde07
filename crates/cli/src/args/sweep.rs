//! The arguments of `zmove sweep`.

use std::path::PathBuf;
use std::time::Duration;

use zmove_tools::sweep::ReferenceRate;
use zmove_types::{ByteCount, parse_size};

use super::help;
use crate::args::shared::storage::StorageArgs;
use crate::value::age::Age;

#[derive(Debug, clap::Args)]
#[command(after_long_help = help::SWEEP_LONG)]
pub(crate) struct SweepArgs {
    /// Directory on the storage to measure
    #[arg(required_unless_present = "compare")]
    pub(crate) path: Option<PathBuf>,
    /// Maximum total size of the files written
    ///
    /// This is also the maximum storage in use at any time.
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = parse_size)]
    pub(crate) budget: ByteCount,
    /// Time limit, such as 90s, 2min or 1h
    #[arg(long, value_name = "TIME", default_value = "2min", value_parser = parse_time)]
    pub(crate) time: Duration,
    /// Number of threads that write and read [default: by cores]
    ///
    /// The default is the number of cores, but at least 2 and at most 16.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    /// Write the result as JSON, for programs and --compare
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Plot rates by file size into an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Compare a --json result of this host (A) with a reference
    ///
    /// Nothing is measured. B is the --json result of the reference. The output is F_s, F_c and U_b.
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["path", "json", "svg"])]
    pub(crate) compare: Option<Vec<PathBuf>>,
    /// With --compare: a transfer rate of the reference
    ///
    /// This is the rate that the reference reached (E_1) for files of SIZE, or of any size, for example 10Gbit or
    /// 64KiB=2Gbit. It may be repeated for several sizes.
    #[arg(long, value_name = "[SIZE=]RATE", requires = "compare")]
    pub(crate) e1: Vec<ReferenceRate>,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

/// Parses a time span in the syntax of [`Age`]. The time span must be at least one second.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let Age(time) = text.parse()?;
    if time < TIME_MIN {
        return Err("it takes a second at least".to_owned());
    }
    Ok(time)
}

const TIME_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(parse_time("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("1min"), Ok(Duration::from_secs(60)));
        assert!(parse_time("0s").is_err() && parse_time("2").is_err());
    }
}
