//! Formats the status of a daemon as a table, with two lines for each transfer. The lines fit 80 columns if the names
//! are short.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use zmove_daemon::{Direction, TransferStatus};
use zmove_types::{ByteCount, ByteRate, RateLimit};

use crate::display::format::{counted, wrapped};
use crate::display::terminal::Printable;
use crate::value::age::Age;
use crate::value::control::DaemonStatus;

/// Number of digits of an ID that are shown. This many digits distinguish transfers, and 'zmove stop' accepts them.
const DIGITS_SHOWN: usize = 8;

/// Indent of the sentence about a transfer, in columns. The name of the key starts at the same column.
const SENTENCE_INDENT: usize = 10;

/// Returns the complete table.
pub(super) fn of(status: &DaemonStatus) -> String {
    let DaemonStatus {
        version,
        pid,
        listen,
        draining,
        transfers,
        ..
    } = status;
    let waiting = transfers.iter().filter(|transfer| transfer.waits).count();
    let running = counted((transfers.len() - waiting) as u64, "transfer");
    let up = UNIX_EPOCH
        .checked_add(Duration::from_secs(status.since))
        .and_then(|since| since.elapsed().ok());
    let up = Age(up.unwrap_or_default());
    let mut text = format!("zmove {version} at {listen}, pid {pid}, up {up}: {running}");
    if waiting > 0 {
        text += &format!(", {waiting} queued");
    }
    if *draining {
        text += "; draining";
    }
    text += "\n";
    if !transfers.is_empty() {
        text += "\nID        KEY           FILES        DONE   OF         RATE   LEFT  LANES\n";
    }
    for transfer in transfers {
        row(&mut text, transfer);
    }
    text
}

fn row(text: &mut String, transfer: &TransferStatus) {
    let unknown = || "-".to_owned();
    let id = transfer.id.get(..DIGITS_SHOWN).unwrap_or(&transfer.id);
    let name = Printable(&transfer.name).to_string();
    let done = ByteCount(transfer.bytes).to_string();
    let all = transfer
        .bytes_found
        .map_or_else(unknown, |bytes| ByteCount(bytes).to_string());
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = ByteRate(transfer.bytes_per_second as f64).to_string();
    let left = transfer
        .eta_seconds
        .map_or_else(unknown, |left| Age(Duration::from_secs(left)).to_string());
    let TransferStatus { files, lanes, .. } = transfer;
    // Writing to a string cannot fail.
    let _written = writeln!(
        text,
        "{id:<9} {name:<10} {files:>8} {done:>11} {all:>9} {rate:>11} {left:>6} {lanes:>6}"
    );
    let sentence = Printable(sentence(transfer)).to_string();
    let _written = writeln!(
        text,
        "{:SENTENCE_INDENT$}{}",
        "",
        wrapped(&sentence, SENTENCE_INDENT)
    );
}

fn sentence(transfer: &TransferStatus) -> String {
    let TransferStatus { from, path, .. } = transfer;
    let limit = transfer
        .limit_bytes_per_second
        .map(|limit| format!(", limit {}", RateLimit::nearest(limit)));
    let limit = limit.unwrap_or_default();
    let lasted = Age(Duration::try_from_secs_f64(transfer.seconds).unwrap_or_default());
    match (transfer.direction, &transfer.reason) {
        (Some(Direction::Receive), _) if transfer.probe => {
            format!("probed from {from}, for {lasted}")
        }
        (Some(Direction::Receive), _) => format!("from {from} into '{path}', for {lasted}{limit}"),
        (Some(Direction::Send), _) => format!("to {from} from '{path}', for {lasted}{limit}"),
        (None, reason) => {
            let reason = reason.as_deref().unwrap_or_default();
            format!("{from} has been queued for {lasted}: {reason}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer() -> TransferStatus {
        TransferStatus {
            id: "0123456789abcdef0123456789abcdef".into(),
            name: "alice".into(),
            key: "SHA256:x".into(),
            granter: None,
            from: "192.0.2.7:4711".into(),
            waits: false,
            reason: None,
            direction: Some(Direction::Receive),
            probe: false,
            path: "run7".into(),
            files: 12,
            bytes: 3 << 30,
            files_found: None,
            bytes_found: None,
            bytes_per_second: 125_000_000,
            eta_seconds: None,
            lanes: 8,
            limit_bytes_per_second: Some(1_250_000_000),
            since: 0,
            seconds: 90.0,
        }
    }

    #[test]
    fn a_transfer_has_two_lines_that_fit_a_terminal() {
        let sends = TransferStatus {
            direction: Some(Direction::Send),
            bytes_found: Some(6 << 30),
            eta_seconds: Some(25),
            ..transfer()
        };
        let waits = TransferStatus {
            direction: None,
            waits: true,
            reason: Some("full".into()),
            ..transfer()
        };
        let status = DaemonStatus {
            schema: 1,
            version: "0.1.0".into(),
            pid: 7,
            key: "SHA256:y".into(),
            listen: "[::]:5870".into(),
            since: 0,
            draining: true,
            transfers: vec![transfer(), sends, waits],
        };
        let text = of(&status);
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].starts_with("zmove 0.1.0 at [::]:5870, pid 7, up "),
            "{text}"
        );
        assert!(
            lines[0].ends_with(": 2 transfers, 1 queued; draining"),
            "{text}"
        );
        assert!(lines.iter().all(|line| line.len() <= 80), "{text}");
        assert_eq!(lines[3].split_whitespace().next(), Some("01234567"));
        assert_eq!(
            lines[4].trim(),
            "from 192.0.2.7:4711 into 'run7', for 1 min, limit 10Gbit"
        );
        assert!(
            lines[5].contains("6.00 GiB") && lines[5].contains("25 s"),
            "{text}"
        );
        assert_eq!(
            lines[6].trim(),
            "to 192.0.2.7:4711 from 'run7', for 1 min, limit 10Gbit"
        );
        assert_eq!(
            lines[8].trim(),
            "192.0.2.7:4711 has been queued for 1 min: full"
        );
    }
}
