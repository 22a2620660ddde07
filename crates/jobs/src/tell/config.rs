//! `tell.toml`: the channels by which people and programs are told.
//!
//! **Invariant:** nobody but its owner can change the file, since it names commands; secrets are in files of their own.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Table;

use super::command::Command;
use super::keys::plain;
use super::mail::Mail;
use super::message::Message;
use super::webhook::Webhook;
use crate::job::Outgoing;
use crate::store::Try;

/// What `tell.toml` says.
#[derive(Clone, Debug)]
pub struct Channels {
    channels: Vec<Channel>,
    /// How long a job moves nothing before that is told.
    pub stalled_after: Duration,
}

/// A way to tell somebody.
#[derive(Clone, Debug)]
pub struct Channel {
    /// The name by which it is chosen.
    pub name: String,
    on: Vec<Topic>,
    always: bool,
    way: Way,
}

#[derive(Clone, Debug)]
enum Way {
    Webhook(Webhook),
    Mail(Box<Mail>),
    Command(Command),
}

/// What a channel tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Topic {
    Done,
    /// Also of the end by a deadline.
    Failed,
    Cancelled,
    Stalled,
    /// A run of a schedule that is late, and a deadline that is over.
    Missed,
}

/// The reason why nobody can be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TellError {
    /// The file cannot be read.
    #[error("read '{}': {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Others could have it run their commands.
    #[error("'{}' can be changed by others, and names what is run: chmod go-w", path.display())]
    Writable {
        /// The file.
        path: PathBuf,
    },
    /// The file says what cannot be.
    #[error("'{}': {why}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such channel.
    #[error("'{}' has no channel '{name}'{}", path.display(), those(known))]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// The names of those that it has.
        known: Vec<String>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tell: Vec<Table>,
    #[serde(default = "stalled_after_seconds")]
    stalled_after_seconds: u64,
}

/// What each channel has, whatever its kind.
#[derive(Deserialize)]
struct Common {
    name: String,
    kind: String,
    #[serde(default = "Topic::usual")]
    on: Vec<Topic>,
    #[serde(default = "always")]
    always: bool,
}

impl Channels {
    /// Reads the file, which need not be there: then nobody is told.
    ///
    /// # Errors
    /// It cannot be read, can be changed by others, or says what cannot be.
    pub fn read(path: &Path) -> Result<Self, TellError> {
        let error = |source| TellError::Io {
            path: path.to_owned(),
            source,
        };
        let text = match std::fs::read_to_string(path) {
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => String::new(),
            text => {
                if is_anybodys(path).map_err(error)? {
                    return Err(TellError::Writable {
                        path: path.to_owned(),
                    });
                }
                text.map_err(error)?
            }
        };
        let directory = path.parent().unwrap_or(Path::new("/"));
        Self::parse(&text, directory).map_err(|why| TellError::Wrong {
            path: path.to_owned(),
            why,
        })
    }

    /// Reads the file's text; files that it names are in this directory, unless they are named from the root on.
    fn parse(text: &str, directory: &Path) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| located(text, &error))?;
        let channels = file
            .tell
            .into_iter()
            .map(|table| Channel::parse(table, directory));
        let channels = channels.collect::<Result<Vec<_>, _>>()?;
        for (at, Channel { name, .. }) in channels.iter().enumerate() {
            if channels[..at].iter().any(|other| other.name == *name) {
                return Err(format!("there are two channels '{name}'"));
            }
        }
        Ok(Self {
            channels,
            stalled_after: Duration::from_secs(file.stalled_after_seconds),
        })
    }

    /// The channel of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Channel> {
        self.channels.iter().find(|channel| channel.name == name)
    }

    /// The channel of this name in the file at this path.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, name: &str, path: &Path) -> Result<&Channel, TellError> {
        self.named(name).ok_or_else(|| TellError::Unknown {
            path: path.to_owned(),
            name: name.to_owned(),
            known: self
                .channels
                .iter()
                .map(|channel| channel.name.clone())
                .collect(),
        })
    }

    /// The channels that tell of an event: those that were chosen for the job, or those that tell of any, if they tell
    /// of such events. One that was chosen and has gone is among them, so that it is said that it did not tell.
    pub(crate) fn of(&self, Outgoing { kind, tell, .. }: &Outgoing) -> Vec<String> {
        if tell.is_empty() {
            let those = self
                .channels
                .iter()
                .filter(|channel| channel.always && channel.wants(kind));
            return those.map(|channel| channel.name.clone()).collect();
        }
        let wants = |name: &&String| self.named(name).is_none_or(|channel| channel.wants(kind));
        tell.iter().filter(wants).cloned().collect()
    }
}

impl Channel {
    fn parse(mut table: Table, directory: &Path) -> Result<Self, String> {
        let common: Common = table
            .clone()
            .try_into()
            .map_err(|error: toml::de::Error| plain(&error))?;
        let Common {
            name,
            kind,
            on,
            always,
        } = common;
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(format!(
                "channel '{}': a name has letters, digits, '-', '_' and '.'",
                name.escape_debug()
            ));
        }
        for key in ["name", "kind", "on", "always"] {
            table.remove(key);
        }
        let way = match kind.as_str() {
            "webhook" => Webhook::parse(table, directory).map(Way::Webhook),
            "mail" => Mail::parse(table, directory).map(|mail| Way::Mail(Box::new(mail))),
            "command" => Command::parse(table).map(Way::Command),
            other => Err(format!(
                "kind '{other}' is none of 'webhook', 'mail' and 'command'"
            )),
        };
        let way = way.map_err(|why| format!("channel '{name}': {why}"))?;
        Ok(Self {
            name,
            on,
            always,
            way,
        })
    }

    fn wants(&self, kind: &str) -> bool {
        self.on.iter().any(|topic| topic.has(kind))
    }

    pub(super) fn tell(&self, message: &Message) -> Try {
        match &self.way {
            Way::Webhook(webhook) => webhook.tell(message),
            Way::Mail(mail) => mail.tell(message),
            Way::Command(command) => command.tell(message),
        }
    }

    /// The server or program that is asked to tell, without what may be secret.
    #[must_use]
    pub fn shown(&self) -> String {
        match &self.way {
            Way::Webhook(webhook) => webhook.shown(),
            Way::Mail(mail) => mail.shown(),
            Way::Command(command) => command.shown(),
        }
    }
}

impl Topic {
    fn usual() -> Vec<Self> {
        vec![Self::Done, Self::Failed, Self::Stalled, Self::Missed]
    }

    fn has(self, kind: &str) -> bool {
        match self {
            Self::Done => kind == "done",
            Self::Failed => matches!(kind, "failed" | "expired"),
            Self::Cancelled => kind == "cancelled",
            Self::Stalled => kind == "stalled",
            Self::Missed => matches!(kind, "missed" | "expired"),
        }
    }
}

/// Whether somebody else can change a file.
fn is_anybodys(path: &Path) -> io::Result<bool> {
    let metadata = std::fs::metadata(path)?;
    let owner = metadata.uid();
    let is_foreign = owner != rustix::process::geteuid().as_raw() && owner != 0;
    Ok(is_foreign || metadata.mode() & 0o022 != 0)
}

/// An error of the file, on one line.
fn located(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().and_then(|span| text.get(..span.start));
    let line = at.map_or_else(String::new, |before| {
        format!("line {}: ", before.matches('\n').count() + 1)
    });
    format!("{line}{}", plain(error))
}

fn those(names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!(": it has {}", names.join(", "))
    }
}

fn always() -> bool {
    true
}

/// The usual time without a byte: longer than any pause that a transfer makes by itself.
fn stalled_after_seconds() -> u64 {
    600
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::job::JobId;

    const GOOD: &str = r#"
        stalled_after_seconds = 120
        [[tell]]
        name = "ops"
        kind = "webhook"
        url = "https://hooks.example.org/zmove?k=secret"
        [[tell]]
        name = "me"
        kind = "mail"
        on = ["failed"]
        server = "smtp.example.org"
        from = "dtn@example.org"
        to = ["Alice <alice@example.org>"]
        [[tell]]
        name = "script"
        kind = "command"
        on = ["missed", "cancelled"]
        always = false
        command = ["/bin/true"]
    "#;

    fn parse(text: &str) -> Result<Channels, String> {
        Channels::parse(text, Path::new("/etc/zmove"))
    }

    fn told(kind: &str, tell: &[&str]) -> Vec<String> {
        let tell = tell.iter().map(ToString::to_string).collect();
        parse(GOOD).unwrap().of(&Outgoing {
            number: 1,
            job: JobId(1),
            kind: kind.into(),
            tell,
        })
    }

    #[test]
    fn a_channel_tells_of_what_it_is_there_for() {
        assert_eq!(parse(GOOD).unwrap().stalled_after, Duration::from_secs(120));
        assert_eq!(told("done", &[]), ["ops"]);
        assert_eq!(told("failed", &[]), ["ops", "me"]);
        assert_eq!(told("expired", &[]), ["ops", "me"]);
        assert_eq!(told("cancelled", &[]), Vec::<String>::new());
        assert_eq!(told("missed", &["script", "me"]), ["script"]);
        // it was there when the job was submitted
        assert_eq!(told("done", &["gone", "script"]), ["gone"]);
    }

    #[test]
    fn what_is_shown_has_no_secret() {
        let channels = parse(GOOD).unwrap();
        let shown = ["ops", "me", "script"].map(|name| channels.named(name).unwrap().shown());
        assert_eq!(
            shown,
            [
                "https://hooks.example.org",
                "smtp.example.org:465",
                "/bin/true"
            ]
        );
    }

    #[track_caller]
    fn assert_refused(from: &str, to: &str, why: &str) {
        let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_channel_and_key() {
        assert_refused("url =", "urll =", "channel 'ops': unknown field `urll`");
        assert_refused("\"me\"", "\"ops\"", "two channels 'ops'");
        assert_refused(
            "\"webhook\"",
            "\"pigeon\"",
            "channel 'ops': kind 'pigeon' is none of",
        );
        assert_refused("[\"failed\"]", "[\"fialed\"]", "unknown variant `fialed`");
        assert_refused(
            "https://hooks",
            "http://hooks",
            "channel 'ops': the URL has to begin with https://",
        );
        assert_refused(
            "https://hooks",
            "https://user:word@hooks",
            "channel 'ops': no user in the URL",
        );
        assert_refused("[\"/bin/true\"]", "[]", "channel 'script': no command");
        assert_refused("\"dtn@example.org\"", "\"dtn\"", "channel 'me': from 'dtn'");
        assert_refused("\"ops\"", "\"o p\"", "a name has letters");
        assert_refused(
            "stalled_after",
            "staled_after",
            "line 2: unknown field `staled_after_seconds`",
        );
    }

    #[test]
    fn a_file_that_others_can_change_is_refused_and_none_tells_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tell.toml");
        assert_eq!(Channels::read(&path).unwrap().channels.len(), 0);
        std::fs::write(&path, GOOD).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(Channels::read(&path).unwrap().channels.len(), 3);
        std::fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        let error = Channels::read(&path).unwrap_err();
        assert!(matches!(error, TellError::Writable { .. }), "{error}");
    }

    #[test]
    fn an_unknown_channel_is_told_with_those_that_are_known() {
        let channels = parse(GOOD).unwrap();
        let error = channels.find("opps", Path::new("/tell.toml")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "'/tell.toml' has no channel 'opps': it has ops, me, script"
        );
    }
}
