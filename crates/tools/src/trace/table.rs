//! The summary of a trace as text.

use std::time::Duration;

use zmove_types::{ByteCount, ByteRate, Printable};

use super::line::{About, TraceLine};
use super::series::{Counter, STAGES};
use crate::drawing::Heading;
use crate::figures::{counted, minute};

/// Returns the heading in two lines: the amount of data and the rate, and the hosts and the number of lanes.
pub(super) fn heading(lines: &[TraceLine], about: &About) -> Heading {
    let last = lines.last().copied().unwrap_or_default();
    let rate = ByteRate::new(last.bytes_stored, Duration::from_secs_f64(last.seconds));
    let limit = about.limited_by.as_ref();
    let limit = limit.map(|limit| format!(", limited by {}", Printable(limit)));
    let title = format!(
        "{} in {:.2} s: {rate}{}",
        ByteCount(last.bytes_stored),
        last.seconds,
        limit.unwrap_or_default()
    );
    let hosts = about.from.as_ref().zip(about.to.as_ref());
    let lanes = lines.iter().map(|line| line.lanes).max().unwrap_or(0);
    let resent = last.segments_retransmitted;
    let below = [
        hosts.map(|(from, to)| format!("{} to {}, ", Printable(from), Printable(to))),
        about.at.map(|at| format!("{}, ", minute(at))),
        Some(counted(lanes as u64, "lane")),
        resent.map(|number| format!(", {} retransmitted", counted(number, "segment"))),
    ];
    let below = below.into_iter().flatten().collect();
    Heading { title, below }
}

/// Returns the whole summary.
pub(super) fn summary(lines: &[TraceLine], about: &About) -> String {
    let Heading { title, below } = heading(lines, about);
    let mut text = format!(
        "{title}\n{below}\n\n{:<16}{:>12}{:>12}{:>14}\n",
        "stage", "begins", "ends", "fastest"
    );
    for (name, bytes) in STAGES {
        text += &stage(name, lines, bytes).unwrap_or_default();
    }
    text.push_str(&format!(
        "\n{:<16}{:>12}{:>12}\n",
        "waiting", "mean", "most"
    ));
    text.push_str(&queue("batches to read", lines, |line| line.packs_waiting));
    text.push_str(&queue("frames for lanes", lines, |line| {
        line.frames_waiting
    }));
    text.push_str(&queue("without receipt", lines, |line| {
        line.items_outstanding
    }));
    text
}

/// Returns the row of a stage: when its first and last bytes were processed, and its highest rate over one second. If
/// the push took less than a second, the rate covers the whole push. Returns `None` if the bytes were not counted.
fn stage(name: &str, lines: &[TraceLine], bytes: Counter) -> Option<String> {
    let last = bytes(lines.last()?)?;
    let at = |reached: &dyn Fn(u64) -> bool| {
        let line = lines.iter().find(|line| bytes(line).is_some_and(reached));
        line.map_or("-".to_owned(), |line| format!("{:.2} s", line.seconds))
    };
    let begins = at(&|bytes| bytes > 0);
    let ends = at(&|bytes| bytes > 0 && bytes >= last);
    Some(format!(
        "{name:<16}{begins:>12}{ends:>12}{:>14}\n",
        fastest(lines, bytes).to_string()
    ))
}

fn queue(name: &str, lines: &[TraceLine], pieces: impl Fn(&TraceLine) -> usize) -> String {
    let most = lines.iter().map(&pieces).max().unwrap_or(0);
    // The numbers in a damaged trace may be so large that their sum needs 128 bits.
    let sum: u128 = lines.iter().map(|line| pieces(line) as u128).sum();
    let mean = sum / lines.len().max(1) as u128;
    format!("{name:<16} {mean:>11} {most:>11}\n")
}

fn fastest(lines: &[TraceLine], bytes: Counter) -> ByteRate {
    let mut most = 0.0f64;
    let mut first = 0;
    for line in lines {
        while lines[first].seconds + SECOND < line.seconds - 1e-6 {
            first += 1;
        }
        let before = &lines[first];
        let (from, seconds) = match line.seconds - before.seconds {
            // When the command started, nothing had been moved.
            time if time < SECOND / 2.0 => (0, line.seconds),
            time => (bytes(before).unwrap_or(0), time),
        };
        let moved = bytes(line).unwrap_or(0).saturating_sub(from);
        if seconds > 0.0 {
            most = most.max(ByteCount(moved).as_f64() / seconds);
        }
    }
    ByteRate(most)
}

const SECOND: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::super::series::tests::steady;
    use super::*;

    #[test]
    fn a_steady_push_is_as_fast_as_its_fastest_second() {
        let said = |text: &str| Some(text.to_owned());
        let limited_by = said("path, 90 % of the time");
        let about = About {
            from: said("here"),
            to: said("there"),
            at: Some(1_764_099_371),
            limited_by,
        };
        let text = summary(&steady(40, 12_500_000), &about);
        let expected = "477 MiB in 4.00 s: 1.00 Gbit/s, limited by path, 90 % of the time\n\
                        here to there, 2025-11-25 19:36 UTC, 8 lanes, 0 segments retransmitted\n";
        assert!(text.starts_with(expected), "{text}");
        let row = |name: &str| {
            text.lines()
                .find(|line| line.starts_with(name))
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            row("stored").split_whitespace().collect::<Vec<_>>()[1..],
            ["0.10", "s", "4.00", "s", "1.00", "Gbit/s"]
        );
        assert_eq!(
            row("frames for").split_whitespace().collect::<Vec<_>>()[3..],
            ["0", "1"]
        );
    }

    #[test]
    fn what_cannot_be_added_up_is_summed_up_nevertheless() {
        let lines: Vec<TraceLine> = steady(3, 1)
            .into_iter()
            .map(|line| TraceLine {
                packs_waiting: usize::MAX,
                ..line
            })
            .collect();
        assert!(summary(&lines, &About::default()).contains(&format!("{0} {0}\n", usize::MAX)));
    }

    #[test]
    fn what_the_kernel_does_not_tell_has_no_row() {
        let lines: Vec<TraceLine> = steady(3, 1)
            .into_iter()
            .map(|line| TraceLine {
                bytes_acked: None,
                segments_retransmitted: None,
                ..line
            })
            .collect();
        let text = summary(&lines, &About::default());
        assert!(
            !text.contains("acknowledged") && !text.contains("retransmitted"),
            "{text}"
        );
    }
}
