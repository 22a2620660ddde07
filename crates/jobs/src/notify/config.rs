//! `notify.toml`, which configures the command hook and the webhook.
//!
//! **Invariant:** only the owner can change the file, because it names a command. Secrets are in files that only the
//! owner can read.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::event::EventDocument;
use super::hook::Hook;
use super::secret::is_closed_to_others;
use super::webhook::Webhook;
use crate::moment::Moment;
use crate::store::NotifyMethod;

/// The contents of `notify.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NotifyConfig {
    stalled_after_seconds: u64,
    timeout_seconds: u64,
    hook: Option<Hook>,
    webhook: Option<Webhook>,
}

/// The reason why no notifications can be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotifyError {
    /// The file cannot be read.
    #[error("read '{}': {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can change the file, and could thus run their own commands as this user.
    #[error("'{}' configures a command, but other users can write the file: run chmod go-w on it", path.display())]
    Writable {
        /// The file.
        path: PathBuf,
    },
    /// The file has a syntax error, an unknown key or an invalid value.
    #[error("'{}': {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The error and its line.
        why: String,
    },
}

impl NotifyConfig {
    /// Reads the file. If the file does not exist, neither a hook nor a webhook is configured.
    ///
    /// # Errors
    /// The file cannot be read, can be changed by others, or is invalid.
    pub fn read(path: &Path) -> Result<Self, NotifyError> {
        let io = |source| NotifyError::Io {
            path: path.to_owned(),
            source,
        };
        let invalid = |why| NotifyError::Invalid {
            path: path.to_owned(),
            why,
        };
        let text = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(io(error)),
            Ok(file) if !is_closed_to_others(&file, 0o022).map_err(io)? => {
                return Err(NotifyError::Writable {
                    path: path.to_owned(),
                });
            }
            Ok(file) => io::read_to_string(file).map_err(io)?,
        };
        // An empty file is an error: a program may have truncated the file and not written the new contents yet.
        // Treating it as an empty configuration would drop all pending notifications.
        if text.is_empty() {
            return Err(invalid("the file is empty".to_owned()));
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        Self::parse(&text, directory).map_err(invalid)
    }

    /// Parses the file's text. Relative paths in it start at `directory`.
    fn parse(text: &str, directory: &Path) -> Result<Self, String> {
        let mut config: Self = toml::from_str(text).map_err(|error| located(text, &error))?;
        if config.hook.as_ref().is_some_and(Hook::is_empty) {
            return Err("[hook]: the command is empty".to_owned());
        }
        if let Some(webhook) = &mut config.webhook {
            webhook.find_files_in(directory);
        }
        Ok(config)
    }

    /// Returns the time without progress after which a job's stall is reported by a notification.
    #[must_use]
    pub fn stalled_after(&self) -> Duration {
        Duration::from_secs(self.stalled_after_seconds)
    }

    /// Returns whether this method is configured.
    #[must_use]
    pub fn has(&self, method: NotifyMethod) -> bool {
        match method {
            NotifyMethod::Hook => self.hook.is_some(),
            NotifyMethod::Webhook => self.webhook.is_some(),
        }
    }

    /// Sends a test event immediately.
    ///
    /// # Errors
    /// The hook or the server did not accept the event. The error is the reason.
    pub fn send_test(&self, method: NotifyMethod, store: &str) -> Result<(), String> {
        self.send(method, &EventDocument::test(store, Moment::now()))
    }

    pub(super) fn send(&self, method: NotifyMethod, event: &EventDocument) -> Result<(), String> {
        let timeout = Duration::from_secs(self.timeout_seconds);
        let sent = match method {
            NotifyMethod::Hook => self.hook.as_ref().map(|hook| hook.send(event, timeout)),
            NotifyMethod::Webhook => self
                .webhook
                .as_ref()
                .map(|webhook| webhook.send(event, timeout)),
        };
        sent.unwrap_or_else(|| Err(format!("no {method} is configured")))
    }
}

impl Default for NotifyConfig {
    fn default() -> Self {
        Self {
            // Longer than any pause of a transfer that is working normally.
            stalled_after_seconds: 600,
            timeout_seconds: 30,
            hook: None,
            webhook: None,
        }
    }
}

/// Returns the error message with its line number, on one line.
fn located(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or_else(String::new, |before| {
        format!("line {}: ", before.matches('\n').count() + 1)
    });
    format!("{line}{}", error.message().replace('\n', "; "))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const GOOD: &str = r#"
        stalled_after_seconds = 120
        [hook]
        command = ["/bin/true"]
        [webhook]
        url = "https://hooks.example.org/zmove?k=secret"
    "#;

    fn parse(text: &str) -> Result<NotifyConfig, String> {
        NotifyConfig::parse(text, Path::new("/etc/zmove"))
    }

    #[test]
    fn the_file_configures_a_hook_and_a_webhook() {
        let both = [NotifyMethod::Hook, NotifyMethod::Webhook];
        let config = parse(GOOD).unwrap();
        assert_eq!(config.stalled_after(), Duration::from_secs(120));
        assert_eq!(both.map(|method| config.has(method)), [true, true]);
        let config = parse("[hook]\ncommand = ['/bin/true']").unwrap();
        assert_eq!(config.stalled_after(), Duration::from_secs(600));
        assert_eq!(both.map(|method| config.has(method)), [true, false]);
        assert_eq!(
            config.send_test(NotifyMethod::Webhook, "abc"),
            Err("no webhook is configured".into())
        );
    }

    #[track_caller]
    fn assert_refused(from: &str, to: &str, why: &str) {
        let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn an_invalid_value_is_refused_with_its_line() {
        assert_refused("url =", "urll =", "line 6: unknown field `urll`");
        assert_refused("[hook]", "[pigeon]", "line 3: unknown field `pigeon`");
        assert_refused("[webhook]", "[hook]", "line 5: duplicate key");
        assert_refused(
            "https://hooks",
            "http://hooks",
            "the URL must begin with https://",
        );
        assert_refused(
            "https://hooks",
            "https://user:word@hooks",
            "the URL contains a user name",
        );
        assert_refused("[\"/bin/true\"]", "[]", "the command is empty");
        assert_refused(
            "stalled_after",
            "staled_after",
            "line 2: unknown field `staled_after_seconds`",
        );
    }

    #[test]
    fn a_file_that_is_empty_or_that_others_can_change_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify.toml");
        let absent = NotifyConfig::read(&path).unwrap();
        assert!(!absent.has(NotifyMethod::Hook) && !absent.has(NotifyMethod::Webhook));
        std::fs::write(&path, GOOD).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(NotifyConfig::read(&path).unwrap().has(NotifyMethod::Hook));
        std::fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        let error = NotifyConfig::read(&path).unwrap_err();
        assert!(matches!(error, NotifyError::Writable { .. }), "{error}");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "").unwrap();
        let error = NotifyConfig::read(&path).unwrap_err();
        assert!(error.to_string().ends_with("the file is empty"), "{error}");
    }
}
