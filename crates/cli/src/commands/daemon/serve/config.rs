//! The settings of `zmove serve`. The command line overrides the file `zmove.toml`, and the file overrides the
//! defaults.
//!
//! **Invariant:** an unknown key or an invalid value is an error that names the file, the line and the key. All errors
//! are reported together.

mod fault;
pub(crate) mod fuzzing;
mod value;

use std::fs::File;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::Deserialize;
use zmove_daemon::Limits;
use zmove_engine::DEFAULT_PORT;
use zmove_types::ByteCount;

use crate::args::{
    ConfineArg, DirectArg, EngineArg, ListenArg, LogFormat, MetricsListen, ServeArgs,
};
use crate::value::age::Age;

pub(crate) use fault::ConfigFault;
use value::{count, memory, seconds, text, word};

/// The settings of a daemon, with the keys of the file as field names.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    #[serde(deserialize_with = "text")]
    pub(crate) listen: SocketAddr,
    #[serde(deserialize_with = "word")]
    pub(crate) transport: ListenArg,
    pub(crate) allow_clear: bool,
    #[serde(deserialize_with = "text")]
    pub(crate) journal_age: Age,
    #[serde(deserialize_with = "word")]
    pub(crate) io_engine: EngineArg,
    #[serde(deserialize_with = "word")]
    pub(crate) direct: DirectArg,
    #[serde(deserialize_with = "text")]
    pub(crate) drain: Age,
    pub(crate) user: Option<String>,
    #[serde(deserialize_with = "word")]
    pub(crate) confine: ConfineArg,
    #[serde(with = "LimitsTable")]
    pub(crate) limits: Limits,
    pub(crate) log: LogTable,
    pub(crate) metrics: MetricsTable,
}

/// The table `[limits]`. Missing keys have the defaults of [`Limits`].
#[derive(Deserialize)]
#[serde(remote = "Limits", default = "Limits::default", deny_unknown_fields)]
struct LimitsTable {
    #[serde(deserialize_with = "count::<_, _, 1, 65_536>")]
    unproven: usize,
    #[serde(deserialize_with = "seconds::<_, 1, 600>")]
    unproven_time: Duration,
    #[serde(deserialize_with = "count::<_, _, 64, 1_000_000>")]
    waiting_per_identity: usize,
    #[serde(deserialize_with = "count::<_, _, 1, 1_000_000>")]
    transfers: usize,
    #[serde(deserialize_with = "count::<_, _, 1, 1_000_000>")]
    transfers_per_identity: usize,
    #[serde(deserialize_with = "count::<_, _, 1, 1_000_000>")]
    queued_per_identity: usize,
    #[serde(deserialize_with = "count::<_, _, 8, 1_000_000>")]
    lanes: usize,
    #[serde(deserialize_with = "count::<_, _, 8, 1_000_000>")]
    lanes_per_identity: usize,
    #[serde(deserialize_with = "count::<_, _, 8, 64>")]
    lanes_per_transfer: u16,
    #[serde(deserialize_with = "memory::<_, 64>")]
    memory_per_transfer: ByteCount,
    #[serde(deserialize_with = "memory::<_, 64>")]
    memory_per_identity: ByteCount,
    #[serde(deserialize_with = "count::<_, _, 64, 1_000_000_000>")]
    files_per_identity: usize,
    #[serde(deserialize_with = "count::<_, _, 1, 1_000_000>")]
    threads_per_identity: usize,
    #[serde(deserialize_with = "count::<_, _, 1, 1_000_000>")]
    journals_per_identity: usize,
    #[serde(deserialize_with = "memory::<_, 1>")]
    journal_bytes_per_identity: ByteCount,
}

/// The table `[log]`.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogTable {
    #[serde(deserialize_with = "word")]
    pub(crate) format: LogFormat,
    pub(crate) file: Option<PathBuf>,
}

/// The table `[metrics]`.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MetricsTable {
    #[serde(deserialize_with = "text")]
    pub(crate) listen: MetricsListen,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT)),
            transport: ListenArg::default(),
            allow_clear: false,
            journal_age: Age(Duration::from_secs(7 * 24 * 60 * 60)),
            io_engine: EngineArg::default(),
            direct: DirectArg::default(),
            drain: Age(Duration::ZERO),
            user: None,
            confine: ConfineArg::default(),
            limits: Limits::default(),
            log: LogTable::default(),
            metrics: MetricsTable::default(),
        }
    }
}

impl Config {
    /// Reads a configuration file. If `file` is `None`, reads the default file in `home`, which may be missing.
    ///
    /// # Errors
    /// Returns all faults of the file.
    pub(crate) fn read(file: Option<&Path>, home: &Path) -> Result<Self, Vec<ConfigFault>> {
        let (path, may_be_missing) = match file {
            Some(file) => (file.to_owned(), false),
            None => (Self::usual(home), true),
        };
        match read_text(&path) {
            Ok(text) => Self::parse(&path, &text),
            Err(error) if may_be_missing && error.kind() == io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => Err(vec![ConfigFault::unread(&path, &error)]),
        }
    }

    /// Returns these settings, overridden by the options of the command line.
    pub(crate) fn with(self, args: &ServeArgs) -> Self {
        Self {
            listen: args.listen.unwrap_or(self.listen),
            transport: args.transport.unwrap_or(self.transport),
            allow_clear: args.allow_clear || self.allow_clear,
            journal_age: args.journal_age.unwrap_or(self.journal_age),
            io_engine: args.io_engine.unwrap_or(self.io_engine),
            direct: args.direct.unwrap_or(self.direct),
            drain: args.drain.unwrap_or(self.drain),
            user: args.user.clone().or(self.user),
            confine: args.confine.unwrap_or(self.confine),
            log: LogTable {
                format: args.log_format.unwrap_or(self.log.format),
                file: args.log_file.clone().or(self.log.file),
            },
            metrics: MetricsTable {
                listen: args.metrics.unwrap_or(self.metrics.listen),
            },
            limits: self.limits,
        }
    }

    /// Returns the default path of the configuration file.
    pub(crate) fn usual(home: &Path) -> PathBuf {
        home.join("zmove.toml")
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Vec<ConfigFault>> {
        toml::from_str(text).map_err(|first| fault::all::<Self>(path, text, first))
    }
}

/// Reads a file. If the file is a FIFO, this function does not block.
fn read_text(path: &Path) -> io::Result<String> {
    let opened = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path);
    io::read_to_string(opened?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let faults = Config::parse(Path::new("/etc/zmove/zmove.toml"), text).unwrap_err();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_empty_file_changes_nothing() {
        let config = Config::parse(Path::new("x"), "").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.limits, Limits::default());
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            listen = "[::1]:5871"
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
            file = "/var/log/zmove/zmove.log"
            [metrics]
            listen = "off"
        "#;
        let config = Config::parse(Path::new("x"), text).unwrap();
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
        let expected = Config {
            listen: "[::1]:5871".parse().unwrap(),
            transport: ListenArg::Tcp,
            allow_clear: true,
            journal_age: Age(Duration::from_secs(2 * 24 * 60 * 60)),
            io_engine: EngineArg::Uring,
            direct: DirectArg::Off,
            drain: Age(Duration::from_secs(30)),
            user: Some("zmove".to_owned()),
            confine: ConfineArg::Auto,
            limits,
            log: LogTable {
                format: LogFormat::Json,
                file: Some("/var/log/zmove/zmove.log".into()),
            },
            metrics: MetricsTable {
                listen: MetricsListen(None),
            },
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn a_fault_has_its_file_line_and_key() {
        let text = "listen = \"[::]:5870\"\n\n[limits]\ntransfer = 5\n";
        let [fault] = &faults(text)[..] else {
            panic!("{:?}", faults(text))
        };
        let begin = "/etc/zmove/zmove.toml: line 4: limits.transfer: unknown field `transfer`, expected one of";
        assert!(fault.starts_with(begin), "{fault}");
        let text = "[limits]\nlanes_per_transfer = 65\n";
        let whole = "/etc/zmove/zmove.toml: line 2: limits.lanes_per_transfer: 65 is not a number from 8 to 64";
        assert_eq!(faults(text), [whole]);
    }

    #[test]
    fn a_wrong_value_is_told_with_what_is_expected() {
        for (key, value, wanted) in [
            ("limits.transfers", "\"many\"", "a number from 1 to 1000000"),
            ("limits.transfers", "true", "a number from 1 to 1000000"),
            ("limits.transfers", "-1", "a number from 1 to 1000000"),
            (
                "limits.memory_per_identity",
                "5",
                "a number of bytes such as \"10GiB\", 64MiB or more",
            ),
            (
                "limits.memory_per_identity",
                "\"1MiB\"",
                "a number of bytes such as \"10GiB\", 64MiB or more",
            ),
            (
                "limits.memory_per_identity",
                "\"10 Gbit\"",
                "a number of bytes such as \"10GiB\", 64MiB or more",
            ),
            (
                "limits.unproven_time",
                "3",
                "a time from \"1s\" to \"600s\"",
            ),
            (
                "limits.unproven_time",
                "\"1d\"",
                "a time from \"1s\" to \"600s\"",
            ),
            ("log.format", "\"xml\"", "one of \"text\", \"json\""),
            ("metrics.listen", "5", "a string in quotes"),
        ] {
            let (table, name) = key.split_once('.').unwrap();
            let text = format!("[{table}]\n{name} = {value}\n");
            let whole = format!("/etc/zmove/zmove.toml: line 2: {key}: {value} is not {wanted}");
            assert_eq!(faults(&text), [whole]);
        }
    }

    #[test]
    fn all_faults_are_told() {
        let text = "listen = \"here\"\ncolour = 3\ntransport = \"udp\"\n[log]\nformat = \"xml\"\n[metrics]\nlisten = 5\n";
        let lines: Vec<_> = faults(text)
            .iter()
            .map(|fault| fault.split(": ").nth(1).unwrap().to_owned())
            .collect();
        assert_eq!(lines, ["line 1", "line 2", "line 3", "line 5", "line 7"]);
    }

    #[test]
    fn a_file_that_is_not_toml_is_told_once() {
        assert_eq!(
            faults("listen = \"[::]:5870\ntransport = \"tcp\"\n").len(),
            1
        );
        assert_eq!(faults("a = 1\na = 2\n]\n").len(), 1);
    }
}
