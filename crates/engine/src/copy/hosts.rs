//! The two hosts of a copy as one session reaches them: daemons, or receivers that ssh has started for it.
//!
//! Such a receiver has a port and a key of its own, and ends with its ssh: a copy does not outlive the command that has
//! ordered it, where one of its hosts is behind ssh.

use zmove_transport::{Channel, ChannelDialler};
use zmove_wire::Place;

use crate::connecting::dial::Connector;
use crate::connecting::location::Remote;
use crate::connecting::settings::DialSettings;
use crate::connecting::ssh::{self, Duty, SshReceiver, SshSession};
use crate::error::ConnectError;

/// Both hosts of one session.
pub(super) struct Hosts<'a> {
    pub(super) source: Host<'a>,
    pub(super) target: Host<'a>,
}

/// One of them.
pub(super) struct Host<'a> {
    of: Connector<'a>,
    started: Option<Started>,
}

/// A receiver that ssh has started, as it is dialled.
struct Started {
    remote: Remote,
    settings: DialSettings,
    ssh: SshSession,
}

impl<'a> Hosts<'a> {
    /// Has ssh start what it is to start, one after the other: each may ask for a password.
    pub(super) async fn begin(
        source: Connector<'a>,
        target: Connector<'a>,
    ) -> Result<Self, ConnectError> {
        // First of all the target's, since somebody may have to be asked for its key.
        let target = Host::begin(target).await?;
        Ok(Self {
            source: Host::begin(source).await?,
            target,
        })
    }

    /// Lets receivers that ssh has started come to their ends.
    pub(super) async fn end(self) {
        for Started { ssh, .. } in [self.source.started, self.target.started]
            .into_iter()
            .flatten()
        {
            ssh.end().await;
        }
    }
}

impl<'a> Host<'a> {
    async fn begin(of: Connector<'a>) -> Result<Self, ConnectError> {
        let Connector {
            remote, settings, ..
        } = of;
        let Some(login) = &remote.login else {
            return Ok(Self { of, started: None });
        };
        let SshReceiver {
            identity,
            key,
            host,
            port,
            session: ssh,
            ..
        } = ssh::start(remote, login, settings, Duty::Copy).await?;
        let remote = Remote {
            host,
            port,
            path: remote.path.clone(),
            login: None,
        };
        let settings = DialSettings {
            key: Some(key),
            identity: Some(identity),
            ..settings.clone()
        };
        Ok(Self {
            of,
            started: Some(Started {
                remote,
                settings,
                ssh,
            }),
        })
    }

    /// The host as it is dialled.
    pub(super) fn connector(&self) -> Connector<'_> {
        match &self.started {
            Some(Started {
                remote, settings, ..
            }) => Connector {
                remote,
                settings,
                ..self.of
            },
            None => self.of,
        }
    }

    pub(super) async fn connect_control(&self) -> Result<(Channel, ChannelDialler), ConnectError> {
        let connected = self.connector().connect_control().await;
        connected.map_err(|error| match &self.started {
            Some(Started { remote, .. }) => ConnectError::BehindSsh {
                host: remote.host.clone(),
                source: Box::new(error),
            },
            None => error,
        })
    }

    /// The host as the other one is to dial it.
    pub(super) fn place(&self) -> Place {
        let Remote { host, port, .. } = self.connector().remote;
        Place {
            host: host.clone(),
            port: *port,
        }
    }
}
