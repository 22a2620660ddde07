//! The histogram as text. Each power of two has a line with bars for the number of files and for their bytes.
//!
//! **Invariant:** a line is wider than the given number of columns (at least 66) only if it shows a path. Every bucket
//! that is not empty has a bar.

use zmove_scan::{Extreme, Histogram, Share};
use zmove_types::ByteCount;

use crate::drawing::scale::size_label;
use crate::figures::{counted, percent, share};

/// Returns the histogram as text. A line has at most `columns` columns, or 66 if `columns` is lower. Paths are not
/// truncated.
#[must_use]
pub fn table(histogram: &Histogram, columns: usize) -> String {
    let mut text = String::new();
    if histogram.files.files > 0 {
        let width = columns
            .saturating_sub(FIXED_COLUMNS)
            .max(2 * BAR_COLUMNS_MIN)
            / 2;
        text = buckets(histogram, width) + "\n";
    }
    text + &classes(histogram) + &totals(histogram) + &extremes(histogram)
}

fn buckets(histogram: &Histogram, width: usize) -> String {
    let mut text = format!(
        "{:>8}  {:>11} {:<width$} {:>10} by size\n",
        "from", "files", "by count", "bytes"
    );
    let most = |of: fn(&Share) -> u64| histogram.buckets().map(|(_, share)| of(&share)).max();
    let files_most = most(|share| share.files);
    let bytes_most = most(|share| share.bytes);
    for (start, share) in histogram.buckets() {
        let by_count = bar(share.files, files_most, width);
        let by_size = bar(share.bytes, bytes_most, width);
        let line = format!(
            "{:>8}  {:>11} {by_count:<width$} {:>10} {by_size}",
            size_label(start),
            share.files,
            ByteCount(share.bytes)
        );
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn classes(histogram: &Histogram) -> String {
    let all = histogram.files;
    let line = |(name, part): (&str, Share)| {
        let files = if part.files == 1 { "file " } else { "files" };
        let count = percent(share(part.files, all.files));
        let size = percent(share(part.bytes, all.bytes));
        format!(
            "{name:<19} {:>11} {files} {count:>7} {:>11} {size:>7}\n",
            part.files,
            ByteCount(part.bytes)
        )
    };
    let classes = [
        ("LOSF, below 1 MiB", histogram.losf),
        ("medium, below 1 GiB", histogram.medium),
        ("large, from 1 GiB", histogram.large),
    ];
    classes.into_iter().map(line).collect()
}

fn totals(histogram: &Histogram) -> String {
    let Histogram {
        files,
        directories,
        symlinks,
        specials,
        errors,
        vanished,
        ..
    } = histogram;
    let all = if files.files == 1 { "file " } else { "files" };
    let mut text = format!(
        "{:<19} {:>11} {all}         {:>11}\n{}, {}, {}\n",
        "all",
        files.files,
        ByteCount(files.bytes).to_string(),
        counted(*directories, "directory"),
        counted(*symlinks, "symbolic link"),
        counted(*specials, "special file"),
    );
    if errors + vanished > 0 {
        text += &format!("{errors} could not be read, {vanished} vanished during the scan\n");
    }
    text
}

fn extremes(histogram: &Histogram) -> String {
    let shown = |extreme: &Option<Extreme>, show: fn(u64) -> String| {
        extreme.as_ref().map_or_else(String::new, |extreme| {
            format!("{}, {}\n", show(extreme.value), extreme.path)
        })
    };
    shown(&histogram.largest_file, |bytes| {
        format!("largest file: {}", ByteCount(bytes))
    }) + &shown(&histogram.largest_directory, |entries| {
        format!("largest directory: {}", counted(entries, "entry"))
    }) + &shown(&histogram.deepest_path, |depth| {
        format!("deepest path: {depth} below its root")
    })
}

/// Returns a bar of block characters, at least one for a positive value.
fn bar(value: u64, most: Option<u64>, columns: usize) -> String {
    let most = u128::from(most.unwrap_or(0).max(1));
    let blocks = (u128::from(value) * columns as u128).div_ceil(most);
    "▇".repeat(usize::try_from(blocks).unwrap_or(columns))
}

/// The width of a bucket's line without its two bars, in columns.
const FIXED_COLUMNS: usize = 34;
const BAR_COLUMNS_MIN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram() -> Histogram {
        let mut histogram = Histogram::default();
        [0, 0, 0, 0, 5, 6, 4096, 1 << 30]
            .into_iter()
            .for_each(|bytes| histogram.add_size(bytes));
        histogram
    }

    #[test]
    fn bars_are_in_proportion_and_never_vanish() {
        assert_eq!(bar(4, Some(4), 8).chars().count(), 8);
        assert_eq!(bar(2, Some(4), 8).chars().count(), 4);
        assert_eq!(bar(1, Some(u64::MAX), 8).chars().count(), 1);
        assert_eq!(bar(0, Some(4), 8), "");
        assert_eq!(bar(0, None, 8), "");
    }

    #[test]
    fn lines_keep_to_the_columns() {
        for columns in [66, 80, 132] {
            let text = table(&histogram(), columns);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{widest:?} of {columns}\n{text}");
        }
    }

    #[test]
    fn the_table_starts_with_its_buckets() {
        let text = table(&histogram(), 60);
        let lines: Vec<_> = text.lines().take(5).collect();
        assert_eq!(
            lines,
            [
                "    from        files by count           bytes by size",
                "     0 B            4 ▇▇▇▇▇▇▇▇▇▇▇▇▇        0 B",
                "     1 B            0                      0 B",
                "     2 B            0                      0 B",
                "     4 B            2 ▇▇▇▇▇▇▇             11 B ▇",
            ]
        );
    }

    #[test]
    fn one_thing_is_no_plural() {
        let mut histogram = Histogram::default();
        histogram.add_size(5);
        histogram.directories = 1;
        histogram.symlinks = 1;
        let text = table(&histogram, 80);
        assert!(
            text.contains("1 directory, 1 symbolic link, 0 special files"),
            "{text}"
        );
        assert!(
            !text.contains("1 files") && text.contains("1 file "),
            "{text}"
        );
    }

    #[test]
    fn an_empty_tree_prints() {
        let text = table(&Histogram::default(), 80);
        assert!(text.contains("0 files"), "{text}");
    }
}
