//! The arguments of `zmove doctor`.

use std::path::PathBuf;

use zmove_engine::Remote;
use zmove_types::RateLimit;

use super::help;

#[derive(Debug, clap::Args)]
#[command(after_long_help = help::DOCTOR_LONG)]
pub(crate) struct DoctorArgs {
    /// Receiver to test: the path to it, and whether it allows this host's key
    #[arg(value_name = "HOST[:PORT]", value_parser = Remote::parse_endpoint)]
    pub(crate) host: Option<Remote>,
    /// Rate that the path should carry, for example 10Gbit [default: the speed of the outgoing link, or 10Gbit]
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<RateLimit>,
    /// Directory whose storage is checked
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) path: PathBuf,
    /// Print all results as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
