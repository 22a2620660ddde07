//! Formats numbers as people read them.

use zmove_types::ByteCount;

/// A span of time in the unit that fits it.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

/// A number of things, in singular or plural.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// The number of files that a comparison has found equal, as a sentence: "1 file is the same".
pub(crate) fn same_files(number: u64) -> String {
    let are = if number == 1 { "is" } else { "are" };
    format!("{} {are} the same", counted(number, "file"))
}

/// A rate of bytes in binary units.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate above zero"
)]
pub(crate) fn bytes_per_second(rate: f64) -> String {
    format!("{}/s", ByteCount(rate.round() as u64))
}

/// A rate of files without its unit, with a fraction where they are few.
pub(crate) fn files_per_second(rate: f64) -> String {
    format!("{rate:.*}", usize::from(rate < 10.0) * 2)
}

/// The columns of a terminal that tables and their texts fit.
pub(crate) const COLUMNS: usize = 80;

/// Text in lines of no more columns than a terminal has, broken at spaces; further lines begin `indent` columns further
/// to the right, and the first stands there already. A word that is longer stays whole.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    broken(text, (indent, indent), COLUMNS)
}

/// A line in lines of no more than so many columns, of which further ones are indented.
pub(crate) fn wrapped_within(line: &str, columns: usize) -> String {
    broken(line, (0, 2), columns)
}

/// Text whose first line begins at the column `first`, and further ones at `indent`.
fn broken(text: &str, (first, indent): (usize, usize), columns: usize) -> String {
    let mut lines = String::new();
    let mut column = first;
    let mut is_begun = false;
    for word in text.split(' ') {
        let wide = word.chars().count();
        if is_begun && column + 1 + wide > columns {
            lines += &format!("\n{:indent$}", "");
            column = indent;
        } else if is_begun {
            lines.push(' ');
            column += 1;
        }
        lines += word;
        column += wide;
        is_begun = true;
    }
    lines
}

/// Text that begins in this column, up to the end of a terminal's line.
pub(crate) fn cut(text: &str, column: usize) -> String {
    let room = COLUMNS - column;
    if text.chars().count() <= room {
        return text.to_owned();
    }
    text.chars().take(room - 1).chain(['…']).collect()
}

/// The first parts of a line that fit into so many columns, each whole; all of it where not even one fits.
pub(crate) fn whole_parts(line: &str, columns: usize) -> &str {
    let Some((end, _)) = line.char_indices().nth(columns) else {
        return line;
    };
    let part = line.match_indices([',', ';']).rfind(|(at, _)| *at <= end);
    part.map_or(line, |(at, _)| &line[..at])
}

/// A moment in seconds since 1970, to the minute.
pub(crate) fn minute(seconds: u64) -> String {
    let (days, within) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02} UTC",
        within / 3_600,
        within / 60 % 60
    )
}

const DAY_SECONDS: u64 = 86_400;

/// The date so many days after 1970-01-01, with years that begin in March, so that a leap day is the last of one.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_BEFORE: u64 = 719_468;
    const ERA_DAYS: u64 = 146_097;
    let days = days.saturating_add(DAYS_BEFORE);
    let (era, day_of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
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

    #[test]
    fn moments_are_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_825_599, "2000-02-29 11:59 UTC"),
            (1_764_099_371, "2025-11-25 19:36 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(minute(seconds), expected);
        }
    }
}
