//! Medians, ranges and plain-text tables.

/// Returns the median, which is the mean of the two middle values if their number is even. `None` if there are no
/// values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(sorted[middle - 1], upper))
}

/// Returns the smallest and the largest value.
pub(crate) fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let greatest = values.iter().copied().max_by(f64::total_cmp)?;
    Some((least, greatest))
}

/// Formats a number with `decimals` decimals, or a dash if there is none.
pub(crate) fn shown(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Formats a table. The first column is left-aligned, and the others are right-aligned.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let first = headings.iter().map(|&heading| heading.to_owned()).collect();
    let lines: Vec<Vec<String>> = std::iter::once(first).chain(rows.iter().cloned()).collect();
    let widths: Vec<usize> = (0..headings.len())
        .map(|column| {
            lines
                .iter()
                .map(|line| width(line, column))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in &lines {
        let cells = widths.iter().enumerate().map(|(column, &width)| {
            let cell = line.get(column).map_or("", String::as_str);
            if column == 0 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn width(line: &[String], column: usize) -> usize {
    line.get(column).map_or(0, |cell| cell.chars().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_odd_number_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn nothing_has_no_median() {
        assert_eq!(median(&[]), None);
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_table_lines_up() {
        let rows = vec![
            vec!["rsync".to_owned(), "1.5".to_owned()],
            vec!["x".to_owned(), "10.5".to_owned()],
        ];
        assert_eq!(
            table(&["tool", "s"], &rows),
            "tool      s\nrsync   1.5\nx      10.5\n"
        );
    }
}
