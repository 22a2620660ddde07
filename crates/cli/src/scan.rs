//! `zmove scan`: the histogram of a tree.

use std::os::unix::ffi::OsStrExt;

use anyhow::Result;
use zmove_scan::{ScanConfig, ScanRoot, histogram, scan, scan_list};
use zmove_types::RelPath;

use crate::args::ScanArgs;
use crate::exit::Exit;
use crate::terminal;

/// Runs `zmove scan`.
pub(crate) fn run(args: &ScanArgs) -> Result<Exit> {
    let prefix = match args.path.file_name() {
        Some(name) if !args.path.is_dir() => RelPath::from_bytes(name.as_bytes())?,
        _ => RelPath::root(),
    };
    let root = ScanRoot { source: args.path.clone(), prefix };
    let config = ScanConfig { selection: args.selection.selection()?, ..ScanConfig::default() };
    let stream = match args.selection.list(|| root.clone())? {
        Some(list) => scan_list(list, &config),
        None => scan(vec![root], &config),
    };
    let walked = histogram(stream, terminal::warn);
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
