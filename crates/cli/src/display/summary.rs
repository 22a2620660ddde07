//! The summary of a push: the files and bytes moved, the rate, and the limit.

pub(crate) mod json;

use serde_json::json;
use zmove_engine::TransportUse;
use zmove_sender::{Bottleneck, Limit, Summary};
use zmove_tools::sweep::Shares;
use zmove_transport::Transport;
use zmove_types::{ByteCount, ByteRate, Counters, ExitEffect};
use zmove_wire::NotKept;

use crate::args::{DurabilityArg, ProofArg, PushArgs};
use crate::display::failures::SCHEMA;
use crate::display::format::{counted, files_per_second, same_files};
use crate::display::progress::print_json;
use crate::display::summary::json::{as_json, cipher_key};
use crate::display::terminal;
use crate::value::exit::Exit;

/// Facts about the end of a transfer that its summary does not contain.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) exit: Exit,
    /// ID of the transfer.
    pub(crate) transfer: Option<String>,
    pub(crate) sessions: SessionCount,
    /// Whether work was lost or repeated. If so, the counts may be wrong.
    pub(crate) is_inexact: bool,
}

/// The number of sessions that a transfer ran at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionCount {
    One,
    /// Several sessions with other hosts. The measurements of the individual sessions were not combined.
    Several,
}

/// Prints the summary in the requested form. `transport_use` is `None` if the transfer ran inside one process, where
/// nothing is encrypted.
pub(crate) fn print(
    summary: &Summary,
    args: &PushArgs,
    transport_use: Option<TransportUse>,
    shares: &Shares,
    ending: &Ending,
) {
    warnings(summary).iter().for_each(terminal::warn);
    if args.json {
        let mut said = as_json(summary, args, transport_use, ending.sessions);
        said["storage"] = json!(shares);
        said["schema"] = json!(SCHEMA);
        said["exit"] = json!(ending.exit as i32);
        said["transfer"] = json!(ending.transfer);
        said["inexact"] = json!(ending.is_inexact);
        print_json(&said);
    } else if args.quiet {
        // If the exit code is nonzero, the reason must be printed on standard error.
        let has_failed = summary.counters.failed > 0;
        if ending.exit == Exit::Partial && !has_failed && !summary.not_kept.is_empty() {
            terminal::warn(format_args!(
                "{}(--strict-metadata)",
                not_kept(&summary.not_kept).replace('\n', " ")
            ));
        }
    } else {
        let transport = transport_use.map(|transport_use| transport_use.transport);
        terminal::print_lines(&(as_text(summary, args, transport) + &shares.line()));
    }
}

/// Returns the warnings about an ended transfer. They are printed on standard error in every output form.
fn warnings(summary: &Summary) -> Vec<String> {
    let Counters {
        manifest_left_out,
        manifest_unread,
        ..
    } = summary.counters;
    let mut warnings = Vec::new();
    if manifest_left_out > 0 {
        warnings.push(format!(
            "{manifest_left_out} names are not UTF-8, contain U+FFFD or end in CR, and are omitted from the manifest: \
             b3sum cannot read them"
        ));
    }
    if manifest_unread > 0 {
        let files = counted(manifest_unread, "file");
        warnings.push(format!(
            "the manifest lacks {files}: their contents at the target were not read"
        ));
    }
    if has_left_all_out(summary) {
        let patterns = "the last matching pattern decides; to send only files that end in .h5: --exclude '*' \
                        --include '*/' --include '*.h5'";
        warnings.push(format!(
            "the selection excludes everything in the sources ({patterns})"
        ));
    }
    warnings
}

/// Returns whether the options permit existing files at the target to stay unchanged, whatever their contents.
const fn leaves_files(args: &PushArgs) -> bool {
    args.update || args.ignore_existing
}

/// Returns whether nothing was moved because the selection excluded all entries. This is most likely a mistake.
fn has_left_all_out(summary: &Summary) -> bool {
    let Counters {
        left_out,
        files,
        skipped,
        failed,
        ..
    } = summary.counters;
    left_out > 0 && files == 0 && skipped == 0 && failed == 0
}

fn as_text(summary: &Summary, args: &PushArgs, transport: Option<Transport>) -> String {
    let Counters {
        files,
        bytes,
        failed,
        ..
    } = summary.counters;
    let headline = if summary.is_preview && args.verify {
        verified(summary, args)
    } else if summary.is_preview {
        previewed(summary, args)
    } else if has_left_all_out(summary) {
        "nothing was sent: the selection excludes everything\n".to_owned()
    } else if files == 0 && (failed == 0 || bytes == 0) {
        not_moved(summary, args, transport)
    } else {
        moved(summary, args, transport)
    };
    let limits = !summary.is_preview && summary.bottleneck.percent > 0 && files > 0;
    let limit = if limits {
        limit(summary)
    } else {
        String::new()
    };
    headline + &limit + &extras(summary, args)
}

/// Returns a text about the result of a preview.
fn previewed(summary: &Summary, args: &PushArgs) -> String {
    let Counters {
        added,
        changed,
        removed,
        files,
        bytes,
        skipped,
        ..
    } = summary.counters;
    let removed = if args.delete {
        format!(", {removed} to remove")
    } else {
        String::new()
    };
    format!(
        "dry run: {added} to add, {changed} to change{removed}; {} of {} to send, {skipped} there already\n",
        counted(files, "file"),
        ByteCount(bytes),
    )
}

/// Returns a text about the result of a transfer that moved no file.
fn not_moved(summary: &Summary, args: &PushArgs, transport: Option<Transport>) -> String {
    let Counters {
        failed, skipped, ..
    } = summary.counters;
    let found = if leaves_files(args) {
        "stay"
    } else {
        "compared equal"
    };
    let none = if failed == 0 {
        "no files to move"
    } else {
        "no file was moved"
    };
    let seconds = summary.elapsed.as_secs_f64();
    let cipher = cipher(args, transport);
    format!("{none}: {skipped} {found} in {seconds:.2} s{cipher}\n")
}

/// Returns a text about the result of a transfer that moved data. It states the amount, the rate, the flush, the
/// verification and the lanes.
fn moved(summary: &Summary, args: &PushArgs, transport: Option<Transport>) -> String {
    let Counters {
        files,
        bytes,
        lanes,
        ..
    } = summary.counters;
    let seconds = summary.elapsed.as_secs_f64();
    let files_rate = files_per_second(ByteCount(files).as_f64() / seconds.max(1e-9));
    let flushed = match args.durability {
        DurabilityArg::None => "not flushed".to_owned(),
        _ => format!("flushed in {:.2} s", summary.flush.as_secs_f64()),
    };
    let first_byte = match summary.first_byte {
        Some(time) => format!("first byte after {:.0} ms", time.as_secs_f64() * 1e3),
        None => "no data had to be sent".to_owned(),
    };
    let verified = if files > 0 {
        format!("verified ({}), ", proofs(args).join(", "))
    } else {
        String::new()
    };
    let over = transport.map_or_else(String::new, |over| {
        format!(" over {}", over.to_string().to_uppercase())
    });
    format!(
        "{}, {} in {seconds:.2} s: {}, {files_rate} files/s\n\
         {verified}{flushed}; {}{over}{}, {first_byte}\n",
        counted(files, "file"),
        ByteCount(bytes),
        ByteRate::new(bytes, summary.elapsed),
        counted(lanes, "lane"),
        cipher(args, transport),
    )
}

/// Returns a text about the cipher of the lanes. The text is empty if there are no lanes.
fn cipher(args: &PushArgs, transport: Option<Transport>) -> String {
    transport.map_or_else(String::new, |_| format!(", cipher: {}", cipher_key(args)))
}

/// Returns the names of the checks by which each stored file was verified.
pub(crate) fn proofs(args: &PushArgs) -> &'static [&'static str] {
    match args.proof {
        ProofArg::Wire => &["wire"],
        ProofArg::Media => &["wire", "media"],
    }
}

/// Returns whether a verification found no difference and no failure.
fn is_same(summary: &Summary) -> bool {
    let counters = &summary.counters;
    counters.failed == 0 && !counters.has(ExitEffect::Difference)
}

/// Returns a text about the result of a verification.
fn verified(summary: &Summary, args: &PushArgs) -> String {
    let Counters {
        added,
        changed,
        removed,
        skipped: compared,
        ..
    } = summary.counters;
    let seconds = summary.elapsed.as_secs_f64();
    let how = if args.listed.is_some() {
        "by hash with the manifest, as read from storage"
    } else {
        "by hash, as read from both storages"
    };
    if is_same(summary) {
        let compared = counted(compared, "file");
        return format!("all the same: {compared} compared {how}, in {seconds:.2} s\n");
    }
    let same = same_files(compared);
    if args.listed.is_some() {
        return format!(
            "{changed} differ, {added} not listed, {removed} listed and not there\n\
             {same}, {how}; {seconds:.2} s\n"
        );
    }
    let removed = if args.delete {
        format!(", {removed} only at the target")
    } else {
        String::new()
    };
    let mut text = format!(
        "{changed} differ, {added} only at the source{removed}\n\
         {same}, {how}; {seconds:.2} s\n"
    );
    if compared == 0 && changed == 0 && added > 0 {
        text += "no source entry exists at the target: check the path ('SRC' is compared with DST/SRC, 'SRC/' with \
                 DST)\n";
    }
    text
}

/// Returns a short description of the limit of a transfer.
pub(crate) fn bottleneck(summary: &Summary) -> String {
    let Bottleneck { limit, percent, .. } = summary.bottleneck;
    format!("{limit}, {percent} % of the time")
}

/// Returns a text about the main limit of the transfer, with a remedy if one is known.
fn limit(summary: &Summary) -> String {
    let limit = summary.bottleneck.limit;
    let idle = summary
        .path_idle()
        .filter(|idle| limit != Limit::Path && *idle >= IDLE_WORTH_SAYING);
    let idle = idle.map_or(String::new(), |idle| {
        format!("; the path was idle {:.0} %", idle * 100.0)
    });
    let advice = summary
        .finding()
        .map_or(String::new(), |finding| format!("{finding}\n"));
    format!("limited by: {}{idle}\n{advice}", bottleneck(summary))
}

/// Minimum share of idle time to report. If the share is smaller, the path is nearly fully used.
const IDLE_WORTH_SAYING: f64 = 0.1;

/// Returns further facts about the transfer, or an empty text. Counts share one line. Each fact that needs the user's
/// attention has a separate line, with advice.
pub(crate) fn extras(summary: &Summary, args: &PushArgs) -> String {
    let mut counters = summary.counters;
    if summary.is_preview || counters.files == 0 {
        // The first line of the summary already states this count.
        counters.skipped = 0;
    }
    if summary.is_preview {
        counters.removed = 0;
    }
    let mut counts = Vec::new();
    if leaves_files(args) && counters.skipped > 0 {
        counts.push(format!("{} stay at the target", counters.skipped));
        counters.skipped = 0;
    }
    let texts = counters
        .rows()
        .filter_map(|(row, value)| row.phrase.text(value));
    let (lines, others): (Vec<_>, Vec<_>) = texts.partition(|text| text.ends_with('\n'));
    counts.extend(others);
    let mut text = counts.join(", ");
    if !text.is_empty() {
        text.push('\n');
    }
    let mut not_kept = not_kept(&summary.not_kept);
    if !not_kept.is_empty() && !args.keeping.verbose {
        not_kept.insert_str(not_kept.len() - 1, "; -v names the entries");
    }
    text + &lines.concat() + &not_kept
}

/// Returns a line that lists the metadata that could not be preserved.
pub(crate) fn not_kept(counts: &[NotKept]) -> String {
    let told: Vec<_> = counts
        .iter()
        .map(|lack| format!("{} of {} ({})", lack.kind, lack.entries, lack.why))
        .collect();
    if told.is_empty() {
        String::new()
    } else {
        format!("not kept: {}\n", told.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use zmove_types::Phrase;

    use super::*;
    use crate::args::{Args, Command};

    /// Returns the arguments of a push without options.
    pub(super) fn args() -> Box<PushArgs> {
        match Args::try_parse_from(["zmove", "push", "a", "b"])
            .unwrap()
            .command
        {
            Command::Push(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn summary(counters: Counters) -> Summary {
        Summary {
            counters,
            ..Summary::default()
        }
    }

    /// Returns the texts that the user reads about a transfer and about its preview.
    fn texts(counters: Counters) -> [String; 2] {
        [false, true].map(|is_preview| {
            let summary = Summary {
                is_preview,
                ..summary(counters)
            };
            let warnings = warnings(&summary).join("\n");
            as_text(&summary, &args(), None) + &warnings
        })
    }

    #[test]
    fn the_text_has_each_counter_that_is_not_for_json_alone() {
        for row in Counters::TABLE {
            let mut counters = Counters {
                files: 1,
                ..Counters::default()
            };
            let without = texts(counters);
            counters.set(row.id, 7);
            let with = texts(counters);
            let has_words = match row.phrase {
                Phrase::JsonOnly => with == without,
                Phrase::Own => with != without,
                phrase => {
                    let words = phrase.text(7).unwrap();
                    with[0].contains(&words)
                }
            };
            assert!(has_words, "{}: {with:?}", row.name);
        }
    }

    #[test]
    fn where_all_failed_or_was_equal_there_is_no_rate_of_nothing() {
        let summary = summary(Counters {
            failed: 1,
            skipped: 41,
            ..Counters::default()
        });
        let text = as_text(&summary, &args(), None);
        assert_eq!(
            text,
            "no file was moved: 41 compared equal in 0.00 s\n\
             1 FAILED: its message states the cause; the same command tries it again\n"
        );
        let partly = Counters {
            bytes: 9,
            ..summary.counters
        };
        let partly = as_text(&self::summary(partly), &args(), None);
        assert!(partly.starts_with("0 files, 9 B in "), "{partly}");
    }

    #[test]
    fn one_file_is_the_same_and_two_are() {
        let same = |skipped| {
            let found = summary(Counters {
                skipped,
                changed: 1,
                ..Counters::default()
            });
            verified(&found, &args())
        };
        assert!(same(1).contains("\n1 file is the same, by hash"));
        assert!(same(2).contains("\n2 files are the same, by hash"));
    }

    #[test]
    fn only_what_was_stored_is_called_verified() {
        let args = args();
        let is_called_so = |counters| {
            let text = as_text(&summary(counters), &args, None);
            text.contains("verified (wire)")
        };
        assert!(is_called_so(Counters {
            files: 1,
            ..Counters::default()
        }));
        assert!(!is_called_so(Counters {
            failed: 1,
            ..Counters::default()
        }));
    }
}
