//! `zmove scan`: prints the histogram of a tree, and advice that is based on it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use zmove_scan::{
    Histogram, ScanConfig, ScanRoot, Selection, histogram, means_contents, scan, scan_list,
    unfinished,
};
use zmove_tools::histogram::{ReadTime, advice, picture, table};
use zmove_types::{Escaped, RelPath};

use crate::args::ScanArgs;
use crate::display::terminal;
use crate::saved_sweeps;
use crate::value::exit::Exit;

/// Runs `zmove scan`.
pub(crate) fn run(args: &ScanArgs) -> Result<Exit> {
    let selection = args.selection.selection()?;
    let file_systems = args.selection.file_systems();
    let config = ScanConfig {
        selection: selection.clone(),
        file_systems,
        // A push also skips these entries. The scan must count the same entries as the push.
        skip_filter: Some(unfinished),
        ..ScanConfig::default()
    };
    let contents = root(&args.path)?;
    let stream = match args.selection.list(|| contents)? {
        Some(list) => scan_list(list, &config),
        None => scan(vec![root_of_push(&args.path)?], &config),
    };
    let walked = histogram(stream, terminal::warn);
    report_unmatched(selection.as_deref());
    let sweep = saved_sweeps::of_paths([args.path.as_path()]);
    let expected = sweep.and_then(|sweep| ReadTime::of(&walked, &sweep));
    let name = Escaped::path(&args.path).to_string();
    let directory = if args.path.is_dir() {
        Some(args.path.as_path())
    } else {
        args.path.parent()
    };
    let directory = directory
        .filter(|path| !path.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let advice = advice(
        &walked,
        expected.as_ref(),
        &Escaped::path(&directory).to_string(),
    );
    if args.json {
        let said = ScanOutput {
            histogram: &walked,
            expected: expected.as_ref(),
        };
        terminal::print(format_args!("{}\n", serde_json::to_string(&said)?));
    } else {
        terminal::print(table(&walked, terminal_columns()));
        terminal::print_lines(&advice);
    }
    if let Some(file) = &args.svg {
        terminal::save(
            file,
            &picture(&walked, &advice, &terminal::Printable(&name).to_string()),
        )?;
    }
    Ok(if walked.errors > 0 {
        Exit::Partial
    } else {
        Exit::Done
    })
}

/// Returns the root at which a scan of `path` starts. A single file is listed under its name, and a directory by its
/// contents.
pub(crate) fn root(path: &Path) -> Result<ScanRoot> {
    let prefix = match path.file_name() {
        Some(name) if !path.is_dir() => RelPath::from_bytes(name.as_bytes())?,
        _ => RelPath::root(),
    };
    Ok(ScanRoot::new(path.to_owned(), prefix))
}

/// Reports the patterns that matched nothing, because they are probably mistakes.
pub(crate) fn report_unmatched(selection: Option<&Selection>) {
    let unmatched: Vec<_> = selection
        .iter()
        .flat_map(|selection| selection.unmatched())
        .collect();
    for rule in unmatched.iter().take(UNMATCHED_SHOWN_MAX) {
        terminal::warn(format_args!(
            "no name matched the pattern '{}'",
            rule.pattern()
        ));
    }
    if unmatched.len() > UNMATCHED_SHOWN_MAX {
        terminal::warn(format_args!(
            "nor {} other patterns",
            unmatched.len() - UNMATCHED_SHOWN_MAX
        ));
    }
}

/// Maximum number of patterns that are reported individually.
const UNMATCHED_SHOWN_MAX: usize = 10;

/// Returns the root to which the patterns of a push of `path` are anchored. The root is the parent directory of `path`.
/// If `path` stands for the contents of a directory, the root is that directory.
fn root_of_push(path: &Path) -> Result<ScanRoot> {
    let prefix = match path.file_name() {
        Some(name) if !means_contents(path.as_os_str().as_bytes()) => {
            RelPath::from_bytes(name.as_bytes())?
        }
        _ => RelPath::root(),
    };
    Ok(ScanRoot::new(path.to_owned(), prefix))
}

/// The JSON object that `--json` prints.
#[derive(Serialize)]
struct ScanOutput<'a> {
    #[serde(flatten)]
    histogram: &'a Histogram,
    /// Minimum time to read the tree. `None` if no sweep of the tree's storage was saved.
    expected: Option<&'a ReadTime>,
}

fn terminal_columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.map_or(100, |size| usize::from(size.ws_col))
        .clamp(60, 160)
}
