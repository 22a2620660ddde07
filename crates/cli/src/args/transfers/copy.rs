//! The arguments of `zmove copy`, and of `zmove result`, which reports on copies between two other hosts.

use zmove_engine::Remote;
use zmove_types::{ByteCount, from_hex, parse_size};

use crate::args::transfers::push::PushArgs;

#[derive(Debug, clap::Args)]
#[command(mut_args(|arg| arg.hide_short_help(true)))]
pub(crate) struct CopyArgs {
    #[command(flatten)]
    pub(crate) push: PushArgs,
    /// Between two other hosts: maximum bytes of contents that the target host accepts, for example 2TiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = None)]
    pub(crate) max_bytes: Option<ByteCount>,
    /// Between two other hosts: maximum number of files, directories and links that the target host accepts
    #[arg(long, value_name = "N", help_heading = None)]
    pub(crate) max_entries: Option<u64>,
    /// Run in the background like 'zmove submit', and print the job's number
    #[arg(long, help_heading = None)]
    pub(crate) detach: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResultArgs {
    /// The copy's ID, printed by 'zmove copy'
    #[arg(value_name = "ID", value_parser = parse_id)]
    pub(crate) id: [u8; 16],
    /// One of the two hosts of the copy
    #[arg(value_name = "HOST[:PORT]", value_parser = Remote::parse_endpoint)]
    pub(crate) host: Remote,
    /// Stop the copy if it is running; HOST must be the source
    #[arg(long)]
    pub(crate) stop: bool,
    /// Print a JSON object on one line
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_id(text: &str) -> Result<[u8; 16], String> {
    from_hex(text.to_ascii_lowercase().as_bytes())
        .ok_or_else(|| format!("'{text}' is not the id of a copy: write 32 hexadecimal digits"))
}
