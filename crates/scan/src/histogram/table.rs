//! The histogram as text: one line per power of two with bars for counts and for bytes.
//!
//! **Invariant:** no line but those that show a path is wider than the given columns (from 66), and every bucket that
//! holds something has a bar.

use std::fmt;

use zmove_types::ByteCount;

use super::{Extreme, Histogram, Share};

/// A [`Histogram`] to be printed.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    histogram: &'a Histogram,
    bar_columns: usize,
}

impl<'a> Table<'a> {
    pub(super) fn new(histogram: &'a Histogram, columns: usize) -> Self {
        Self {
            histogram,
            bar_columns: columns
                .saturating_sub(FIXED_COLUMNS)
                .max(2 * BAR_COLUMNS_MIN)
                / 2,
        }
    }

    fn write_buckets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.bar_columns;
        writeln!(
            f,
            "{:>8}  {:>11} {:<width$} {:>10} by size",
            "from", "files", "by count", "bytes"
        )?;
        let most =
            |of: fn(&Share) -> u64| self.histogram.buckets().map(|(_, share)| of(&share)).max();
        let (files_most, bytes_most) = (most(|share| share.files), most(|share| share.bytes));
        for (start, share) in self.histogram.buckets() {
            let by_count = bar(share.files, files_most, width);
            let by_size = bar(share.bytes, bytes_most, width);
            let line = format!(
                "{:>8}  {:>11} {by_count:<width$} {:>10} {by_size}",
                power(start),
                share.files,
                ByteCount(share.bytes)
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn write_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Histogram {
            files,
            losf,
            medium,
            large,
            ..
        } = self.histogram;
        for (name, share) in [
            ("LOSF, below 1 MiB", losf),
            ("medium, below 1 GiB", medium),
            ("large, from 1 GiB", large),
        ] {
            let (count, size) = (
                percent(share.files, files.files),
                percent(share.bytes, files.bytes),
            );
            let bytes = ByteCount(share.bytes);
            let files = if share.files == 1 { "file " } else { "files" };
            writeln!(
                f,
                "{name:<19} {:>11} {files} {count:>7} {bytes:>11} {size:>7}",
                share.files
            )?;
        }
        Ok(())
    }

    fn write_totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Histogram {
            files,
            directories,
            symlinks,
            specials,
            errors,
            vanished,
            ..
        } = self.histogram;
        let all = if files.files == 1 { "file " } else { "files" };
        writeln!(
            f,
            "{:<19} {:>11} {all}         {:>11}",
            "all",
            files.files,
            ByteCount(files.bytes)
        )?;
        let directories = counted(*directories, "directory", "directories");
        let symlinks = counted(*symlinks, "symbolic link", "symbolic links");
        writeln!(
            f,
            "{directories}, {symlinks}, {}",
            counted(*specials, "special file", "special files")
        )?;
        if errors + vanished > 0 {
            writeln!(
                f,
                "{errors} could not be read, {vanished} vanished meanwhile"
            )?;
        }
        Ok(())
    }

    fn write_extremes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Extreme { value, path }) = &self.histogram.largest_file {
            writeln!(f, "largest file: {}, {path}", ByteCount(*value))?;
        }
        if let Some(Extreme { value, path }) = &self.histogram.largest_directory {
            writeln!(
                f,
                "largest directory: {}, {path}",
                counted(*value, "entry", "entries")
            )?;
        }
        if let Some(Extreme { value, path }) = &self.histogram.deepest_path {
            writeln!(f, "deepest path: {value} below its root, {path}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.histogram.files.files > 0 {
            self.write_buckets(f)?;
            writeln!(f)?;
        }
        self.write_classes(f)?;
        self.write_totals(f)?;
        self.write_extremes(f)
    }
}

fn counted(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// A power of two as its exact binary unit: `512 B`, `4 KiB`.
fn power(bytes: u64) -> String {
    let thousands = bytes.checked_ilog2().unwrap_or(0) / 10;
    let unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][thousands as usize];
    format!("{} {unit}", bytes >> (10 * thousands))
}

/// A bar of blocks, at least one for any value above zero.
fn bar(value: u64, most: Option<u64>, columns: usize) -> String {
    let most = u128::from(most.unwrap_or(0).max(1));
    let blocks = (u128::from(value) * columns as u128).div_ceil(most);
    "▇".repeat(usize::try_from(blocks).unwrap_or(columns))
}

fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 {
        0.0
    } else {
        ByteCount(part).as_f64() / ByteCount(whole).as_f64()
    };
    format!("{:.1} %", 100.0 * share)
}

/// The columns of a bucket's line beside its two bars.
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
            let text = histogram().table(columns).to_string();
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{widest:?} of {columns}\n{text}");
        }
    }

    #[test]
    fn the_table_starts_with_its_buckets() {
        let text = histogram().table(60).to_string();
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
        let mut histogram = Histogram {
            directories: 1,
            symlinks: 1,
            ..Histogram::default()
        };
        histogram.add_size(5);
        let text = histogram.table(80).to_string();
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
        let text = Histogram::default().table(80).to_string();
        assert!(text.contains("0 files"), "{text}");
    }
}
