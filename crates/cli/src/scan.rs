//! `zmove scan`: the histogram of a tree.

use anyhow::Result;
use zmove_scan::{ScanConfig, ScanRoot, histogram, scan};
use zmove_types::RelPath;

use crate::args::ScanArgs;
use crate::exit::Exit;
use crate::terminal;

/// Runs `zmove scan`.
pub(crate) fn run(args: &ScanArgs) -> Result<Exit> {
    let prefix = if args.path.is_dir() { RelPath::root() } else { RelPath::from_bytes(b"file")? };
    let root = ScanRoot { source: args.path.clone(), prefix };
    let walked = histogram(scan(vec![root], &ScanConfig::default()), terminal::warn);
    if args.json {
        terminal::print(format_args!("{}\n", serde_json::to_string(&walked)?));
    } else {
        terminal::print(walked.table(terminal_columns()));
    }
    Ok(if walked.errors > 0 { Exit::Partial } else { Exit::Done })
}

fn terminal_columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.map_or(100, |size| usize::from(size.ws_col)).clamp(60, 160)
}
