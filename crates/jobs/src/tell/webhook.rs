//! A webhook: a POST over HTTPS, signed as [Standard Webhooks](https://www.standardwebhooks.com) describes, so that
//! libraries for it exist.
//!
//! **Invariant:** a connection is made to an address that was looked at, and to no other: names are resolved here, once
//! for a try, and nothing follows a redirect.

mod trust;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio_rustls::TlsConnector;
use toml::Table;

use super::address::is_public;
use super::keys::{literal, plain, timeout_seconds};
use super::message::{Message, printable};
use super::secret;
use crate::moment::Moment;
use crate::store::Try;

#[derive(Clone, Debug)]
pub(super) struct Webhook {
    host: String,
    port: u16,
    /// Path and query, where a secret may be.
    path: String,
    secret_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    allow_private: bool,
    timeout: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    url: String,
    secret_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    #[serde(default)]
    allow_private: bool,
    #[serde(default = "timeout_seconds")]
    timeout_seconds: u64,
}

impl Webhook {
    pub(super) fn parse(table: Table, directory: &Path) -> Result<Self, String> {
        let keys: Keys = table.try_into().map_err(|error| plain(&error))?;
        let url: Uri = keys
            .url
            .parse()
            .map_err(|error| format!("the URL cannot be read: {error}"))?;
        if url.scheme_str() != Some("https") {
            return Err("the URL has to begin with https://".to_owned());
        }
        let host = url
            .host()
            .filter(|host| !host.is_empty())
            .ok_or("the URL has no host")?;
        if url
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err(
                "no user in the URL: who is asked knows this host by the signature".to_owned(),
            );
        }
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            host: host.to_owned(),
            port: url.port_u16().unwrap_or(443),
            path: path.to_owned(),
            secret_file: keys.secret_file.map(|file| directory.join(file)),
            ca_file: keys.ca_file.map(|file| directory.join(file)),
            allow_private: keys.allow_private,
            timeout: Duration::from_secs(keys.timeout_seconds),
        })
    }

    /// What may be shown: the path of a webhook is often its secret.
    pub(super) fn shown(&self) -> String {
        format!("https://{}", self.authority())
    }

    fn authority(&self) -> String {
        if self.port == 443 {
            self.host.clone()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(super) fn tell(&self, message: &Message) -> Try {
        let told = self
            .prepare(message, Moment::now())
            .and_then(|request| self.post(request));
        match told {
            Ok(()) => Try::Delivered,
            Err(Refusal::Gone) => Try::Never(format!(
                "{} says that it is gone for good (410)",
                self.shown()
            )),
            Err(Refusal::NotNow(why)) => Try::NotNow(format!("{}: {why}", self.shown())),
        }
    }

    fn prepare(&self, message: &Message, now: Moment) -> Result<Request<Full<Bytes>>, Refusal> {
        let body = message.as_json().to_string();
        let seconds = now.0.div_euclid(1000);
        let mut request = Request::post(&self.path)
            .header(HOST, self.authority())
            .header(USER_AGENT, concat!("zmove/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", seconds);
        if let Some(file) = &self.secret_file {
            let key = key(&secret::read(file)?)?;
            request = request.header(
                "webhook-signature",
                signature(&key, &message.id, seconds, &body),
            );
        }
        request
            .body(Full::new(body.into()))
            .map_err(|error| error.to_string().into())
    }

    fn post(&self, request: Request<Full<Bytes>>) -> Result<(), Refusal> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("start: {error}"))?;
        let asked = runtime.block_on(async {
            let asked = tokio::time::timeout(self.timeout, self.ask(request)).await;
            asked.unwrap_or_else(|_| {
                Err(format!("no answer within {} s", self.timeout.as_secs()).into())
            })
        });
        // A name that is being resolved by a thread of its own is not waited for.
        runtime.shutdown_background();
        asked
    }

    async fn ask(&self, request: Request<Full<Bytes>>) -> Result<(), Refusal> {
        let stream = self.connect().await?;
        let server = ServerName::try_from(
            self.host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
        );
        let server = server.map_err(|_| format!("'{}' is no name of a host", self.host))?;
        let config = trust::config(self.ca_file.as_deref())?;
        let connected = TlsConnector::from(Arc::new(config))
            .connect(server, stream)
            .await;
        let tls = connected.map_err(|error| format!("TLS: {error}"))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        // How it ends is told to who waits for the answer.
        let _driver = tokio::spawn(connection);
        judge(sender.send_request(request).await?).await
    }

    /// Connects to the first address of the host that answers, of those that it may have.
    async fn connect(&self) -> Result<TcpStream, Refusal> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<SocketAddr> = match literal(host) {
            Some(address) => vec![(address, self.port).into()],
            None => {
                let found = tokio::net::lookup_host((host, self.port)).await;
                found
                    .map_err(|error| format!("resolve its name: {error}"))?
                    .collect()
            }
        };
        let mut why = Refusal::from("its name has no address");
        for address in addresses {
            if !self.allow_private && !is_public(address.ip()) {
                why = format!(
                    "{} is no address of the public internet (see allow_private)",
                    address.ip()
                )
                .into();
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => why = format!("connect to {address}: {error}").into(),
            }
        }
        Err(why)
    }
}

async fn judge(response: Response<Incoming>) -> Result<(), Refusal> {
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    if status == StatusCode::GONE {
        return Err(Refusal::Gone);
    }
    if status.is_redirection() {
        let to = response
            .headers()
            .get(LOCATION)
            .and_then(|to| to.to_str().ok())
            .unwrap_or("nowhere");
        let to: String = to.chars().take(SHOWN_MAX).collect();
        return Err(format!(
            "it answers {status}, and redirects are not followed: to {}",
            printable(&to)
        )
        .into());
    }
    let said = beginning(response.into_body()).await;
    Err(format!("it answers {status}{said}").into())
}

/// The first words of a body, which may have no end.
async fn beginning(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < SHOWN_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        let room = SHOWN_MAX - bytes.len();
        bytes.extend(frame.data_ref().into_iter().flatten().take(room));
    }
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    if text.is_empty() {
        String::new()
    } else {
        format!(": {}", printable(text))
    }
}

/// The key that a secret is: bytes in base 64 behind `whsec_`, or the text itself.
fn key(secret: &str) -> Result<Vec<u8>, Refusal> {
    let Some(encoded) = secret.strip_prefix("whsec_") else {
        return Ok(secret.as_bytes().to_vec());
    };
    BASE64_STANDARD
        .decode(encoded)
        .map_err(|_| "the secret behind 'whsec_' is not in base 64".into())
}

/// The value of `webhook-signature`: HMAC-SHA256 of id, time stamp and body.
fn signature(key: &[u8], id: &str, seconds: i64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let tag = hmac::sign(&key, format!("{id}.{seconds}.{body}").as_bytes());
    format!("v1,{}", BASE64_STANDARD.encode(tag))
}

/// The reason why it was not told.
enum Refusal {
    NotNow(String),
    Gone,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::NotNow(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::NotNow(why.to_owned())
    }
}

impl From<hyper::Error> for Refusal {
    fn from(error: hyper::Error) -> Self {
        Self::NotNow(format!("HTTP: {error}"))
    }
}

/// How much of an answer is read and shown.
const SHOWN_MAX: usize = 300;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::Authority;
