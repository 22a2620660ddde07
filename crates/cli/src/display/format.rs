//! Formats numbers and text for the terminal.

use zmove_tools::figures::Wrapping;

pub(crate) use zmove_tools::figures::{counted, files_per_second, minute};

/// Returns the number of files that compared equal, as a sentence: "1 file is the same".
pub(crate) fn same_files(number: u64) -> String {
    let are = if number == 1 { "is" } else { "are" };
    format!("{} {are} the same", counted(number, "file"))
}

/// Maximum width of tables and their texts, in columns.
pub(crate) const COLUMNS: usize = 80;

/// Wraps text at spaces to the width of a terminal. The first line is assumed to start at column `indent`, and all
/// later lines are indented by `indent` columns. A word that is longer than a line is not broken.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    Wrapping {
        first: indent,
        indent,
        columns: COLUMNS,
    }
    .of(text)
}

/// Wraps a line to at most `columns` columns, and indents all lines after the first.
pub(crate) fn wrapped_within(line: &str, columns: usize) -> String {
    Wrapping {
        first: 0,
        indent: 2,
        columns,
    }
    .of(line)
}

/// Truncates text to the width of a terminal. The text starts at the given column.
pub(crate) fn cut(text: &str, column: usize) -> String {
    let room = COLUMNS - column;
    if text.chars().count() <= room {
        return text.to_owned();
    }
    text.chars().take(room - 1).chain(['…']).collect()
}

/// Returns as many complete parts of a line as fit into `columns` columns. If not even one part fits, returns the
/// complete line.
pub(crate) fn whole_parts(line: &str, columns: usize) -> &str {
    let Some((end, _)) = line.char_indices().nth(columns) else {
        return line;
    };
    let part = line.match_indices([',', ';']).rfind(|(at, _)| *at <= end);
    part.map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_the_width_of_a_terminal_and_no_word_is_broken() {
        let text = "word ".repeat(40) + &"x".repeat(100);
        let lines: Vec<_> = wrapped(&text, 22).lines().map(str::to_owned).collect();
        assert!(
            lines[1..]
                .iter()
                .all(|line| line.starts_with(&" ".repeat(22)))
        );
        assert!(
            lines[..lines.len() - 1]
                .iter()
                .all(|line| line.len() <= COLUMNS)
        );
        assert_eq!(
            lines[0].len(),
            11 * 5 - 1,
            "as much as fits behind what stands before it"
        );
        assert_eq!(wrapped("", 22), "");
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&lines.join("\n")), words(&text));
    }

    #[test]
    fn what_is_too_long_is_cut() {
        assert_eq!(cut("ü", 79), "ü");
        assert_eq!(cut("üü", 79), "…");
        assert_eq!(cut(&"ü".repeat(81), 0).chars().count(), COLUMNS);
    }

    #[test]
    fn parts_that_do_not_fit_are_left_out_whole() {
        let line = "1 MiB of 2 MiB+, 3 of 124+ files; slow: ü";
        assert_eq!(
            [41, 40, 32, 31, 20].map(|columns| whole_parts(line, columns)),
            [
                line,
                "1 MiB of 2 MiB+, 3 of 124+ files",
                "1 MiB of 2 MiB+, 3 of 124+ files",
                "1 MiB of 2 MiB+",
                "1 MiB of 2 MiB+",
            ]
        );
        assert_eq!((whole_parts(line, 3), whole_parts("", 3)), (line, ""));
    }

    #[test]
    fn a_line_that_is_too_wide_goes_on_indented() {
        assert_eq!(wrapped_within("a line of words", 15), "a line of words");
        assert_eq!(wrapped_within("a line of words", 10), "a line of\n  words");
        assert_eq!(
            wrapped_within("unbreakable and more", 5),
            "unbreakable\n  and\n  more"
        );
    }
}
