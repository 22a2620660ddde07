//! The daemon's file, `zmove.toml`: every key may be left out, and what is typed on the command line wins.
//!
//! **Invariant:** a key that is not known, or has a value that cannot be, is an error that names file, line and key; all of
//! them are told at once.

mod fault;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod value;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use zmove_receiver::Limits;
use zmove_types::ByteCount;

use crate::args::{ConfineArg, DirectArg, EngineArg, ListenArg, LogFormat, MetricsListen};
use crate::value::age::Age;

pub(crate) use fault::ConfigFault;
use value::{Count, Memory, Seconds, Text, Word};

/// What the file says.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) listen: Option<Text<SocketAddr>>,
    pub(crate) transport: Option<Word<ListenArg>>,
    pub(crate) allow_clear: Option<bool>,
    pub(crate) journal_age: Option<Text<Age>>,
    pub(crate) io_engine: Option<Word<EngineArg>>,
    pub(crate) direct: Option<Word<DirectArg>>,
    pub(crate) drain: Option<Text<Age>>,
    pub(crate) user: Option<String>,
    pub(crate) confine: Option<Word<ConfineArg>>,
    limits: LimitsTable,
    pub(crate) log: LogTable,
    pub(crate) metrics: MetricsTable,
}

/// `[limits]`; the defaults are those of [`Limits`].
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
struct LimitsTable {
    unproven: Option<Count<1, 65_536>>,
    unproven_time: Option<Seconds<1, 600>>,
    waiting_per_identity: Option<Count<64, 1_000_000>>,
    transfers: Option<Count<1, 1_000_000>>,
    transfers_per_identity: Option<Count<1, 1_000_000>>,
    queued_per_identity: Option<Count<1, 1_000_000>>,
    lanes: Option<Count<8, 1_000_000>>,
    lanes_per_identity: Option<Count<8, 1_000_000>>,
    lanes_per_transfer: Option<Count<8, 64>>,
    memory_per_transfer: Option<Memory<64>>,
    memory_per_identity: Option<Memory<64>>,
    files_per_identity: Option<Count<64, 1_000_000_000>>,
    threads_per_identity: Option<Count<1, 1_000_000>>,
    journals_per_identity: Option<Count<1, 1_000_000>>,
    journal_bytes_per_identity: Option<Memory<1>>,
}

/// `[log]`.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogTable {
    pub(crate) format: Option<Word<LogFormat>>,
}

/// `[metrics]`.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MetricsTable {
    pub(crate) listen: Option<Text<MetricsListen>>,
}

impl Config {
    /// Reads a file; `None` stands for the one in `home`, which need not be there.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub(crate) fn read(file: Option<&Path>, home: &Path) -> Result<Self, Vec<ConfigFault>> {
        let (path, may_be_missing) = match file {
            Some(file) => (file.to_owned(), false),
            None => (Self::usual(home), true),
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&path, &text),
            Err(error) if may_be_missing && error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => Err(vec![ConfigFault::unread(&path, &error)]),
        }
    }

    /// Where it is looked for.
    pub(crate) fn usual(home: &Path) -> PathBuf {
        home.join("zmove.toml")
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Vec<ConfigFault>> {
        toml::from_str(text).map_err(|first| fault::all::<Self>(path, text, first))
    }

    /// The limits, those that are not there by default.
    pub(crate) fn limits(&self) -> Limits {
        let table = &self.limits;
        let usual = Limits::default();
        let lanes = table.lanes_per_transfer.map(|count| u16::try_from(count.0));
        Limits {
            unproven: table.unproven.map_or(usual.unproven, |count| count.0),
            unproven_time: table.unproven_time.map_or(usual.unproven_time, |time| time.0),
            waiting_per_identity: table
                .waiting_per_identity
                .map_or(usual.waiting_per_identity, |count| count.0),
            transfers: table.transfers.map_or(usual.transfers, |count| count.0),
            transfers_per_identity: table
                .transfers_per_identity
                .map_or(usual.transfers_per_identity, |count| count.0),
            queued_per_identity: table.queued_per_identity.map_or(usual.queued_per_identity, |count| count.0),
            lanes: table.lanes.map_or(usual.lanes, |count| count.0),
            lanes_per_identity: table.lanes_per_identity.map_or(usual.lanes_per_identity, |count| count.0),
            lanes_per_transfer: lanes.and_then(Result::ok).unwrap_or(usual.lanes_per_transfer),
            memory_per_transfer: table
                .memory_per_transfer
                .map_or(usual.memory_per_transfer, |memory| ByteCount(memory.0)),
            memory_per_identity: table
                .memory_per_identity
                .map_or(usual.memory_per_identity, |memory| ByteCount(memory.0)),
            files_per_identity: table.files_per_identity.map_or(usual.files_per_identity, |count| count.0),
            threads_per_identity: table
                .threads_per_identity
                .map_or(usual.threads_per_identity, |count| count.0),
            journals_per_identity: table
                .journals_per_identity
                .map_or(usual.journals_per_identity, |count| count.0),
            journal_bytes_per_identity: table
                .journal_bytes_per_identity
                .map_or(usual.journal_bytes_per_identity, |memory| ByteCount(memory.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn faults(text: &str) -> Vec<String> {
        let faults = Config::parse(Path::new("/etc/zmove/zmove.toml"), text).unwrap_err();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_empty_file_changes_nothing() {
        let config = Config::parse(Path::new("x"), "").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.limits(), Limits::default());
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            listen = "[::]:5870"
            transport = "tcp"
            allow_clear = true
            journal_age = "2d"
            io_engine = "uring"
            direct = "off"
            drain = "30s"
            user = "zmove"
            confine = "auto"
            [limits]
            unproven = 10
            unproven_time = "3s"
            waiting_per_identity = 64
            transfers = 5
            transfers_per_identity = 4
            queued_per_identity = 9
            lanes = 100
            lanes_per_identity = 50
            lanes_per_transfer = 16
            memory_per_transfer = "1GiB"
            memory_per_identity = "2GiB"
            files_per_identity = 1000
            threads_per_identity = 10
            journals_per_identity = 5
            journal_bytes_per_identity = "4MiB"
            [log]
            format = "json"
            [metrics]
            listen = "off"
        "#;
        let config = Config::parse(Path::new("x"), text).unwrap();
        assert_eq!(config.listen.as_ref().unwrap().0, "[::]:5870".parse().unwrap());
        assert_eq!(config.transport.unwrap().0, ListenArg::Tcp);
        assert_eq!(config.drain.as_ref().unwrap().0.0, Duration::from_secs(30));
        assert_eq!((config.user.as_deref(), config.confine.unwrap().0), (Some("zmove"), ConfineArg::Auto));
        assert_eq!(config.metrics.listen.as_ref().unwrap().0, MetricsListen(None));
        let limits = Limits {
            unproven: 10,
            unproven_time: Duration::from_secs(3),
            waiting_per_identity: 64,
            transfers: 5,
            transfers_per_identity: 4,
            queued_per_identity: 9,
            lanes: 100,
            lanes_per_identity: 50,
            lanes_per_transfer: 16,
            memory_per_transfer: ByteCount(1 << 30),
            memory_per_identity: ByteCount(2 << 30),
            files_per_identity: 1000,
            threads_per_identity: 10,
            journals_per_identity: 5,
            journal_bytes_per_identity: ByteCount(4 << 20),
        };
        assert_eq!(config.limits(), limits);
    }

    #[test]
    fn a_fault_has_its_file_line_and_key() {
        let text = "listen = \"[::]:5870\"\n\n[limits]\ntransfer = 5\n";
        let [fault] = &faults(text)[..] else { panic!("{:?}", faults(text)) };
        let begin =
            "/etc/zmove/zmove.toml: line 4: limits.transfer: unknown field `transfer`, expected one of";
        assert!(fault.starts_with(begin), "{fault}");
        let text = "[limits]\nlanes_per_transfer = 65\n";
        let whole = "/etc/zmove/zmove.toml: line 2: limits.lanes_per_transfer: 65 is not 8 to 64";
        assert_eq!(faults(text), [whole]);
    }

    #[test]
    fn all_faults_are_told() {
        let text = "listen = \"here\"\ncolour = 3\ntransport = \"udp\"\n[log]\nformat = \"xml\"\n[metrics]\nlisten = 5\n";
        let lines: Vec<_> =
            faults(text).iter().map(|fault| fault.split(": ").nth(1).unwrap().to_owned()).collect();
        assert_eq!(lines, ["line 1", "line 2", "line 3", "line 5", "line 7"]);
    }

    #[test]
    fn a_file_that_is_not_toml_is_told_once() {
        assert_eq!(faults("listen = \"[::]:5870\ntransport = \"tcp\"\n").len(), 1);
        assert_eq!(faults("a = 1\na = 2\n]\n").len(), 1);
    }
}
