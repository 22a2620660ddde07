//! Converts a trace to curves. The points are reduced to the number that the eye can distinguish, so that the chart of
//! a long push is not larger. Counters are converted to rates. Many receipts arrive at the same time, so a rate is an
//! average over a window. The window grows with the length of the push.

use super::file::INTERVAL;
use super::line::TraceLine;

/// A function that returns the number of bytes that a stage has processed, or `None` if they are not counted.
pub(super) type Counter = fn(&TraceLine) -> Option<u64>;

/// The stages, in the order in which data passes through them.
pub(super) const STAGES: [(&str, Counter); 4] = [
    ("read", |line| Some(line.bytes_read)),
    ("given to lanes", |line| Some(line.bytes_handed_over)),
    // Only the kernel can report acknowledged bytes.
    ("acknowledged", |line| line.bytes_acked),
    ("stored", |line| Some(line.bytes_stored)),
];

/// The points of a curve, as time and value.
pub(super) type Points = Vec<(f64, f64)>;

/// The lines of a trace, divided into the pieces that are drawn.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    /// An artificial line before the first line: when the command started, nothing had been moved.
    start: TraceLine,
    pieces: Vec<&'a [TraceLine]>,
}

impl<'a> Pieces<'a> {
    /// Divides the lines into at most `pieces_max` pieces of almost equal length.
    pub(super) fn of(lines: &'a [TraceLine], pieces_max: usize) -> Self {
        let each = lines.len().div_ceil(pieces_max).max(1);
        Self {
            start: TraceLine::default(),
            pieces: lines.chunks(each).collect(),
        }
    }

    /// Returns the value of a counter at the end of each piece.
    pub(super) fn totals(&self, counter: impl Fn(&TraceLine) -> f64) -> Points {
        self.ends()
            .map(|line| (line.seconds, counter(line)))
            .collect()
    }

    /// Returns the increase of a counter per second, over windows of almost equal duration.
    pub(super) fn rates(&self, counter: impl Fn(&TraceLine) -> f64) -> Points {
        let ends = self.windows();
        let pairs = ends.iter().zip(ends.iter().skip(1));
        pairs
            .map(|(before, now)| {
                let rate = (counter(now) - counter(before)) / (now.seconds - before.seconds);
                (f64::midpoint(before.seconds, now.seconds), rate.max(0.0))
            })
            .collect()
    }

    /// Returns the duration of a rate's window, in seconds. Many receipts arrive at the same time, so the rate over a
    /// single sample would consist of spikes.
    pub(super) fn window(&self) -> f64 {
        let seconds = self.ends().last().map_or(0.0, |line| line.seconds);
        let sample = INTERVAL.as_secs_f64();
        (seconds / WINDOWS_MAX / sample).ceil().max(1.0) * sample
    }

    /// Returns the lines at the ends of the windows. If the lines do not divide evenly, the last window contains the
    /// remainder.
    fn windows(&self) -> Vec<&TraceLine> {
        let shortest = self.window() * 0.99;
        let mut ends: Vec<&TraceLine> = Vec::new();
        for line in self.lines() {
            if ends
                .last()
                .is_none_or(|end| line.seconds - end.seconds >= shortest)
            {
                ends.push(line);
            }
        }
        if let Some(end) = ends.last_mut().filter(|end| end.seconds > 0.0) {
            *end = self.lines().last().unwrap_or(&self.start);
        }
        ends
    }

    fn lines(&self) -> impl Iterator<Item = &TraceLine> {
        std::iter::once(&self.start).chain(self.pieces.iter().copied().flatten())
    }

    /// Returns the mean of a gauge over each piece.
    #[expect(clippy::cast_precision_loss, reason = "a piece has few lines")]
    pub(super) fn means(&self, gauge: impl Fn(&TraceLine) -> f64) -> Points {
        let mean =
            |piece: &&[TraceLine]| piece.iter().map(&gauge).sum::<f64>() / piece.len() as f64;
        let last = |piece: &&[TraceLine]| piece.last().map_or(0.0, |line| line.seconds);
        self.pieces
            .iter()
            .map(|piece| (last(piece), mean(piece)))
            .collect()
    }

    fn ends(&self) -> impl Iterator<Item = &TraceLine> {
        std::iter::once(&self.start).chain(self.pieces.iter().filter_map(|piece| piece.last()))
    }
}

const WINDOWS_MAX: f64 = 40.0;

/// Converts a count to a value of a curve.
#[expect(clippy::cast_precision_loss, reason = "a picture has no more digits")]
pub(super) fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a trace that stores `bytes` bytes in each tenth of a second.
    pub(in crate::trace) fn steady(tenths: u32, bytes: u64) -> Vec<TraceLine> {
        let at = |tenth: u32| {
            let stored = bytes * u64::from(tenth);
            TraceLine {
                seconds: f64::from(tenth) / 10.0,
                bytes_read: stored + 3 * bytes,
                bytes_handed_over: stored + 2 * bytes,
                bytes_acked: Some(stored + bytes),
                bytes_stored: stored,
                frames_waiting: tenth as usize % 2,
                lanes: 8,
                segments_retransmitted: Some(0),
                ..TraceLine::default()
            }
        };
        (1..=tenths).map(at).collect()
    }

    #[test]
    fn a_rate_is_what_came_in_its_window() {
        let lines = steady(4, 1_000);
        let pieces = Pieces::of(&lines, 100);
        let rates = pieces.rates(|line| zmove_types::ByteCount(line.bytes_stored).as_f64());
        assert_eq!(rates.len(), 4);
        assert!(
            rates.iter().all(|(_, rate)| (rate - 10_000.0).abs() < 1e-6),
            "{rates:?}"
        );
        assert!((rates[0].0 - 0.05).abs() < 1e-9);
    }

    #[test]
    fn a_long_trace_is_thinned_and_keeps_its_end() {
        let lines = steady(1_001, 1);
        let pieces = Pieces::of(&lines, 100);
        let totals = pieces.totals(|line| count(line.lanes));
        assert!((50..=101).contains(&totals.len()), "{}", totals.len());
        assert_eq!(totals.last(), Some(&(100.1, 8.0)));
        let means = pieces.means(|line| count(line.frames_waiting));
        assert!(
            means[..means.len() - 1]
                .iter()
                .all(|(_, mean)| (0.4..=0.6).contains(mean)),
            "{means:?}"
        );
    }

    #[test]
    fn what_is_left_at_the_end_makes_no_peak() {
        let mut lines = steady(40, 10);
        lines.push(TraceLine {
            seconds: 4.001,
            bytes_stored: 440,
            ..lines[39]
        });
        let pieces = Pieces::of(&lines, 100);
        let rates = pieces.rates(|line| zmove_types::ByteCount(line.bytes_stored).as_f64());
        assert_eq!(rates.len(), 20);
        assert!(rates.iter().all(|(_, rate)| *rate < 500.0), "{rates:?}");
    }

    #[test]
    fn a_longer_push_has_longer_windows() {
        let lines = steady(400, 10);
        let pieces = Pieces::of(&lines, 100);
        assert!((pieces.window() - 1.0).abs() < 1e-9);
        assert_eq!(pieces.rates(|line| count(line.lanes)).len(), 40);
    }
}
