//! The fuzz target for lists of paths, run by `crates/fuzz`.

use std::io::Cursor;

use zmove_types::RelPath;

use super::{PathList, ScanRoot, Separator};

/// Reads a list with each separator, and checks that reading the accepted paths again yields the same paths.
///
/// # Panics
/// Panics if the paths differ, or if the list yields more paths than it has separated texts.
pub fn path_list(bytes: &[u8]) {
    for (separator, end) in [(Separator::Newline, b'\n'), (Separator::Nul, 0)] {
        let texts = bytes.iter().filter(|&&byte| byte == end).count() + 1;
        let paths = read(bytes, separator);
        assert!(paths.len() <= texts);
        // No path contains a NUL byte. The root is excluded because an empty text is not a path in a list.
        let named: Vec<_> = paths.into_iter().filter(|path| !path.is_root()).collect();
        let text: Vec<u8> = named
            .iter()
            .flat_map(|path| [path.as_bytes(), &[0]].concat())
            .collect();
        assert_eq!(read(&text, Separator::Nul), named);
    }
}

fn read(bytes: &[u8], separator: Separator) -> Vec<RelPath> {
    let root = ScanRoot::new(".", RelPath::root());
    let mut list = PathList::new(root, Cursor::new(bytes.to_vec()), "list".into(), separator);
    let mut paths = Vec::new();
    while let Some(batch) = list.next_batch() {
        paths.extend(batch.into_iter().filter_map(Result::ok));
    }
    paths
}
