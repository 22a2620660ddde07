//! A mail, by SMTP over TLS.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lettre::message::Mailbox;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, CertificateStore, Tls, TlsParameters};
use lettre::{SmtpTransport, Transport as _};
use serde::Deserialize;
use toml::Table;

use super::keys::{literal, plain, timeout_seconds};
use super::message::{Message, printable};
use super::secret;
use crate::store::Try;

#[derive(Clone, Debug)]
pub(super) struct Mail {
    server: String,
    port: u16,
    security: Security,
    user: Option<(String, PathBuf)>,
    ca_file: Option<PathBuf>,
    from: Mailbox,
    to: Vec<Mailbox>,
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Security {
    /// From the first byte.
    #[default]
    Tls,
    /// From the server's word that it can, without which nothing is said.
    Starttls,
    /// None: for a server on this host.
    None,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    server: String,
    port: Option<u16>,
    #[serde(default)]
    security: Security,
    user: Option<String>,
    password_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    from: String,
    to: Vec<String>,
    #[serde(default = "timeout_seconds")]
    timeout_seconds: u64,
}

impl Mail {
    pub(super) fn parse(table: Table, directory: &Path) -> Result<Self, String> {
        let keys: Keys = table.try_into().map_err(|error| plain(&error))?;
        let mailbox = |key: &str, text: &str| {
            text.parse::<Mailbox>()
                .map_err(|error| format!("{key} '{}': {error}", printable(text)))
        };
        let user = match (keys.user, keys.password_file) {
            (Some(user), Some(file)) => Some((user, directory.join(file))),
            (None, None) => None,
            _ => return Err("user and password_file go together".to_owned()),
        };
        let is_here = keys.server == "localhost"
            || literal(&keys.server).is_some_and(|address| address.is_loopback());
        if keys.security == Security::None && (!is_here || user.is_some()) {
            return Err(
                "security 'none' is for a server on this host, and without a password".to_owned(),
            );
        }
        if keys.to.is_empty() {
            return Err("nobody in 'to'".to_owned());
        }
        Ok(Self {
            port: keys.port.unwrap_or(match keys.security {
                Security::Tls => 465,
                Security::Starttls => 587,
                Security::None => 25,
            }),
            server: keys.server,
            security: keys.security,
            user,
            ca_file: keys.ca_file.map(|file| directory.join(file)),
            from: mailbox("from", &keys.from)?,
            to: keys
                .to
                .iter()
                .map(|to| mailbox("to", to))
                .collect::<Result<_, _>>()?,
            timeout: Duration::from_secs(keys.timeout_seconds),
        })
    }

    pub(super) fn shown(&self) -> String {
        format!("{}:{}", self.server, self.port)
    }

    pub(super) fn tell(&self, message: &Message) -> Try {
        let sent = self
            .transport()
            .and_then(|transport| Ok((transport, self.letter(message)?)));
        match sent {
            Err(why) => Try::NotNow(why),
            Ok((transport, letter)) => match transport.send(&letter) {
                Ok(_) => Try::Delivered,
                Err(error) => self.judge(&error),
            },
        }
    }

    /// What a server refuses for good it will refuse again, but for a password, which may be set right.
    fn judge(&self, error: &lettre::transport::smtp::Error) -> Try {
        let why = format!("{}: {}", self.shown(), printable(&error.to_string()));
        let is_about_user = error
            .status()
            .is_some_and(|code| ABOUT_THE_USER.contains(&code.into()));
        if error.is_permanent() && !is_about_user {
            Try::Never(why)
        } else {
            Try::NotNow(why)
        }
    }

    fn letter(&self, message: &Message) -> Result<lettre::Message, String> {
        let mut letter = lettre::Message::builder()
            .from(self.from.clone())
            .subject(message.subject());
        for to in &self.to {
            letter = letter.to(to.clone());
        }
        // The same each time, so that who gets it twice shows it once.
        let domain = self.from.email.domain();
        letter
            .message_id(Some(format!("<{}@{domain}>", message.id)))
            .body(message.text())
            .map_err(|error| error.to_string())
    }

    fn transport(&self) -> Result<SmtpTransport, String> {
        let tls = match self.security {
            Security::Tls => Tls::Wrapper(self.trust()?),
            Security::Starttls => Tls::Required(self.trust()?),
            Security::None => Tls::None,
        };
        let transport = SmtpTransport::builder_dangerous(&self.server).port(self.port);
        let mut transport = transport.tls(tls).timeout(Some(self.timeout));
        if let Some((user, file)) = &self.user {
            transport = transport.credentials(Credentials::new(user.clone(), secret::read(file)?));
        }
        Ok(transport.build())
    }

    fn trust(&self) -> Result<TlsParameters, String> {
        let mut trust = TlsParameters::builder(self.server.clone());
        if let Some(path) = &self.ca_file {
            let fail =
                |error: &dyn std::fmt::Display| format!("read '{}': {error}", path.display());
            let pem = std::fs::read(path).map_err(|error| fail(&error))?;
            let certificate = Certificate::from_pem(&pem).map_err(|error| fail(&error))?;
            trust = trust
                .certificate_store(CertificateStore::None)
                .add_root_certificate(certificate);
        }
        trust.build_rustls().map_err(|error| error.to_string())
    }
}

/// Codes that say that the user or the password is wrong, or none was given.
const ABOUT_THE_USER: [u16; 4] = [530, 534, 535, 538];

#[cfg(test)]
mod tests;
