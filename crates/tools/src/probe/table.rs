//! The results of a probe as text. Its tables fit into 80 columns.

use zmove_sender::{PathReport, ProbeReport, Round};
use zmove_types::{ByteCount, ByteRate, Printable};

use super::prediction::ClassTime;
use super::{ProbeResults, best, cpu_per_gib, milliseconds, rate};
use crate::figures::{counted, duration};
use crate::sweep::IoDirection;

/// Returns the whole text.
pub(super) fn of(found: &ProbeResults) -> String {
    let mut text = path(found);
    if let Some(storage) = &found.source {
        text += &storage.text("source storage");
    }
    if let Some(storage) = &found.target {
        text += &storage.text("target storage");
    }
    if let Some(tree) = &found.tree {
        text += &prediction(found, &tree.name);
    }
    for line in found.advice() {
        text += &format!("{}\n", Printable(line));
    }
    text
}

fn path(found: &ProbeResults) -> String {
    let ProbeReport {
        round_trips,
        first_byte,
        rounds,
        ..
    } = &found.report;
    let mut text = format!(
        "{} over {}: round trip {} (mean {} of {}),\n  first byte after {}\n",
        Printable(&found.host),
        found.transport.to_uppercase(),
        milliseconds(round_trips.min),
        milliseconds(round_trips.mean()),
        round_trips.count,
        milliseconds(*first_byte),
    );
    text += "lanes        rate    at first  resent window buffer round trip CPU here   there\n";
    rounds.iter().for_each(|round| text += &line(round));
    if let Some(round) = rounds.first() {
        let steady = round.steady.time.as_secs_f64();
        let ramp = round.ramp.time.as_secs_f64();
        text += &format!(
            "rate: what the receiver counted in {steady:.1} s, from memory to memory, after {ramp:.1} s\n\
             \x20 in which windows grew (at first); resent: the share of what was sent\n\
             window, buffer: for how much of the time the receiver's window and the send\n\
             \x20 buffer here kept data back\n\
             round trip: of control beside the data; CPU: seconds of each process per GiB\n"
        );
    }
    text
}

fn line(round: &Round) -> String {
    let share = |share: Option<f64>, digits: usize| {
        share.map_or_else(
            || "-".to_owned(),
            |share| format!("{:.digits$} %", share * 100.0),
        )
    };
    let path = round.path.as_ref();
    let cpu =
        |cpu| cpu_per_gib(cpu, round).map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.2} s"));
    format!(
        "{:>5} {:>11} {:>11} {:>7} {:>6} {:>6} {:>10} {:>8} {:>7}\n",
        round.lanes,
        rate(round),
        ByteRate(round.ramp.bytes_per_second()),
        share(path.map(PathReport::retransmitted_share), 2),
        share(path.map(PathReport::receive_window_share), 0),
        share(path.map(PathReport::send_buffer_share), 0),
        milliseconds(round.round_trips.mean()),
        cpu(round.sender_cpu),
        cpu(round.receiver_cpu),
    )
}

fn prediction(found: &ProbeResults, tree: &str) -> String {
    let tree = Printable(tree);
    let Some(predicted) = found.prediction() else {
        return format!("{tree} has no files\n");
    };
    let mut text = format!(
        "{tree}: a push of it takes about {}, at {} and {:.0} files/s;\n  limited by {}\n",
        duration(predicted.seconds),
        ByteRate(predicted.bytes_per_second),
        predicted.files_per_second,
        predicted.limited_by.name(),
    );
    text += "    class      files        bytes     source       path     target\n";
    for ClassTime {
        class,
        files,
        bytes,
        source_seconds,
        path_seconds,
        target_seconds,
        ..
    } in &predicted.classes
    {
        let shown = |time: Option<f64>| time.map_or_else(|| "?".to_owned(), duration);
        text += &format!(
            "{class:>9} {files:>10} {:>12} {:>10} {:>10} {:>10}\n",
            ByteCount(*bytes),
            shown(*source_seconds),
            shown(Some(*path_seconds)),
            shown(*target_seconds),
        );
    }
    let lanes = best(&found.report).map_or(0, |round| round.lanes);
    text += &format!(
        "with {}, and {} to start\n",
        counted(u64::from(lanes), "lane"),
        duration(predicted.start_seconds)
    );
    if found.source.is_none() {
        text += "source storage is not known: measure it with 'zmove sweep DIR' there, or with --source DIR\n";
    }
    if found
        .target
        .as_ref()
        .is_none_or(|storage| storage.ceiling(IoDirection::Write).is_none())
    {
        text += "target storage is not known: give a directory (HOST:PATH) to measure it\n";
    }
    text
}
