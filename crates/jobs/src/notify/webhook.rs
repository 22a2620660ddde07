//! The webhook: a POST request over HTTPS, signed according to [Standard Webhooks](https://www.standardwebhooks.com),
//! for which libraries exist.
//!
//! **Invariant:** the event and its signature are sent only to a server that has a trusted certificate for the host of
//! the URL. Redirects are not followed.

mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio_rustls::TlsConnector;

use super::event::EventDocument;
use super::secret::read_secret;
use crate::moment::Moment;

/// The server that receives the events.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "WebhookTable")]
pub(super) struct Webhook {
    /// The host. An IPv6 address is in brackets.
    host: String,
    port: u16,
    /// The path and query of the URL, which may contain a secret.
    path: String,
    secret_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WebhookTable {
    url: String,
    secret_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
}

impl TryFrom<WebhookTable> for Webhook {
    type Error = String;

    fn try_from(table: WebhookTable) -> Result<Self, String> {
        let url: Uri = table
            .url
            .parse()
            .map_err(|error| format!("invalid URL: {error}"))?;
        if url.scheme_str() != Some("https") {
            return Err("the URL must begin with https://".to_owned());
        }
        let authority = url.authority().ok_or("the URL has no host")?;
        if authority.as_str().contains('@') {
            return Err(
                "the URL contains a user name: remove it (the server identifies this host by the signature)".to_owned(),
            );
        }
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(443),
            path: path.to_owned(),
            secret_file: table.secret_file,
            ca_file: table.ca_file,
        })
    }
}

impl Webhook {
    /// Resolves relative paths against a directory.
    pub(super) fn find_files_in(&mut self, directory: &Path) {
        for file in [&mut self.secret_file, &mut self.ca_file] {
            *file = file.take().map(|file| directory.join(file));
        }
    }

    /// Posts the event. A status of 2xx means that the server has accepted it. Errors name the server but not the path,
    /// which may contain a secret.
    pub(super) fn send(&self, event: &EventDocument, timeout: Duration) -> Result<(), String> {
        let sent = self
            .request(event, Moment::now())
            .and_then(|request| self.post(request, timeout));
        sent.map_err(|why| format!("https://{}: {why}", self.authority()))
    }

    fn authority(&self) -> String {
        if self.port == 443 {
            self.host.clone()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn request(&self, event: &EventDocument, now: Moment) -> Result<Request<Full<Bytes>>, String> {
        let body = &event.json;
        let seconds = now.seconds();
        let mut request = Request::post(&self.path)
            .header(HOST, self.authority())
            .header(USER_AGENT, concat!("zmove/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &event.id)
            .header("webhook-timestamp", seconds);
        if let Some(file) = &self.secret_file {
            let key = key(&read_secret(file)?)?;
            let signature = signature(&key, &event.id, seconds, body);
            request = request.header("webhook-signature", signature);
        }
        request
            .body(Full::new(body.clone().into()))
            .map_err(|error| error.to_string())
    }

    fn post(&self, request: Request<Full<Bytes>>, timeout: Duration) -> Result<(), String> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("start: {error}"))?;
        let answered =
            runtime.block_on(async { tokio::time::timeout(timeout, self.ask(request)).await });
        // Do not wait for a thread that is still resolving the host name.
        runtime.shutdown_background();
        let status = answered
            .unwrap_or_else(|_| Err(format!("no answer within {} s", timeout.as_secs())))?;
        if status.is_success() {
            Ok(())
        } else if status.is_redirection() {
            Err(format!(
                "the server answers {status}, and redirects are not followed"
            ))
        } else {
            Err(format!("the server answers {status}"))
        }
    }

    /// Sends a request and returns the status of the response. The body of the response is not read.
    async fn ask(&self, request: Request<Full<Bytes>>) -> Result<StatusCode, String> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let server = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("'{host}' is not a host name"))?;
        let config = trust::config(self.ca_file.as_deref())?;
        let stream = TcpStream::connect((host, self.port))
            .await
            .map_err(|error| format!("connect: {error}"))?;
        let tls = TlsConnector::from(Arc::new(config))
            .connect(server, stream)
            .await
            .map_err(|error| format!("TLS: {error}"))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls))
            .await
            .map_err(|error| format!("HTTP: {error}"))?;
        // The spawned task's own error is ignored, because `send_request` reports it.
        let _connection = tokio::spawn(connection);
        let response = sender.send_request(request).await;
        response
            .map(|response| response.status())
            .map_err(|error| format!("HTTP: {error}"))
    }
}

/// Returns the signing key. After the prefix `whsec_`, the secret is base64. A secret without that prefix is used
/// unchanged.
fn key(secret: &str) -> Result<Vec<u8>, String> {
    let Some(encoded) = secret.strip_prefix("whsec_") else {
        return Ok(secret.as_bytes().to_vec());
    };
    BASE64_STANDARD
        .decode(encoded)
        .map_err(|_| "the secret after 'whsec_' is not valid base64".to_owned())
}

/// Returns the value of `webhook-signature`: the HMAC-SHA256 of the id, the timestamp and the body.
fn signature(key: &[u8], id: &str, seconds: i64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let tag = hmac::sign(&key, format!("{id}.{seconds}.{body}").as_bytes());
    format!("v1,{}", BASE64_STANDARD.encode(tag))
}

#[cfg(test)]
pub(super) mod tests;
