//! Finds the grants of holders whose certificates were issued by an authority in the list.
//!
//! This code runs for every unknown peer, so its work per peer is bounded. An index finds the lines for the names in a
//! certificate. Each authority in these lines checks the certificate only once, with revocation lists that have already
//! been parsed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::{Denial, Grant, Holder, Subject};
use crate::channel::Claim;
use crate::error::AuthorityError;
use crate::trust::authority::{CertificateFault, ClientAuthority, NamedCertificate};
use crate::trust::file_cache::FileCache;

/// The lines with authorities, indexed by the names to which they apply.
#[derive(Debug, Default)]
pub(super) struct Vouchers {
    authorities: Vec<Voucher>,
    /// The lines for each common name.
    common_names: HashMap<String, Vec<VouchedLine>>,
    /// The lines for each host name, in lower case.
    hosts: HashMap<String, Vec<VouchedLine>>,
    /// The lines for host names, indexed by the part of the name after the first dot. Used for certificates with a
    /// wildcard (`*.`).
    domains: HashMap<String, Vec<VouchedLine>>,
    /// The lines for IP addresses.
    addresses: Vec<VouchedLine>,
}

/// An authority. Its files are read when it is first needed, and reread when they have changed.
#[derive(Debug)]
struct Voucher {
    certificates: PathBuf,
    revoked: Option<PathBuf>,
    read: FileCache<ClientAuthority, AuthorityError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VouchedLine {
    grant: usize,
    authority: usize,
}

/// Maximum number of lines that are checked for one certificate. Further lines in the list are ignored.
const LINES_MAX: usize = 64;

impl Vouchers {
    pub(super) fn new(home: &Path, grants: &[Grant]) -> Self {
        let mut vouchers = Self::default();
        let mut known = HashMap::new();
        for (number, grant) in grants.iter().enumerate() {
            let Holder::Certified {
                authority,
                revoked,
                subject,
            } = &grant.holder
            else {
                continue;
            };
            let authority = *known.entry((authority, revoked)).or_insert_with(|| {
                let revoked = revoked.as_ref().map(|path| home.join(path));
                let certificates = home.join(authority);
                vouchers.authorities.push(Voucher {
                    certificates,
                    revoked,
                    read: FileCache::default(),
                });
                vouchers.authorities.len() - 1
            });
            vouchers.add(
                subject,
                VouchedLine {
                    grant: number,
                    authority,
                },
            );
        }
        vouchers
    }

    fn add(&mut self, subject: &Subject, line: VouchedLine) {
        match subject {
            Subject::CommonName(name) => self
                .common_names
                .entry(name.clone())
                .or_default()
                .push(line),
            Subject::Host(name) if name.parse::<IpAddr>().is_ok() => self.addresses.push(line),
            Subject::Host(name) => {
                let name = name.to_ascii_lowercase();
                if let Some((_, domain)) = name.split_once('.') {
                    self.domains
                        .entry(domain.to_owned())
                        .or_default()
                        .push(line);
                }
                self.hosts.entry(name).or_default().push(line);
            }
        }
    }

    /// Returns the grant of the first line whose authority accepts the certificates of a key.
    pub(super) fn authorize<'a>(
        &self,
        grants: &'a [Grant],
        claim: &Claim,
        now: SystemTime,
    ) -> Result<&'a Grant, Denial> {
        let Claim { key, chain, .. } = claim;
        let mut verdicts = HashMap::new();
        let mut denial = Denial::Unknown { key: *key };
        for VouchedLine { grant, authority } in self.lines_for(grants, claim) {
            let grant = &grants[grant];
            let verdict = verdicts.entry(authority).or_insert_with(|| {
                let authority = self.authorities[authority].read();
                authority.map(|authority| authority.check(chain, now))
            });
            match verdict {
                Ok(Ok(())) => return Ok(grant),
                Ok(Err(fault)) => {
                    denial = Denial::Certificate {
                        key: *key,
                        name: grant.name.clone(),
                        fault: CertificateFault::clone(fault),
                    };
                }
                Err(source) => {
                    denial = Denial::Authority {
                        source: Arc::clone(source),
                    }
                }
            }
        }
        Err(denial)
    }

    /// Returns the lines for the names in the peer's first certificate, in the order of the list. The issuer of the
    /// certificate is not checked here.
    fn lines_for(&self, grants: &[Grant], claim: &Claim) -> Vec<VouchedLine> {
        let Some(named) = claim.chain.first().and_then(NamedCertificate::read) else {
            return Vec::new();
        };
        let common_name = named.common_name();
        let mut lines: Vec<VouchedLine> = common_name
            .iter()
            .filter_map(|name| self.common_names.get(name))
            .flatten()
            .copied()
            .collect();
        for host in named.hosts() {
            let host = host.to_ascii_lowercase();
            let found = match host.strip_prefix("*.") {
                Some(domain) => self.domains.get(domain),
                None => self.hosts.get(host.trim_end_matches('.')),
            };
            lines.extend(found.into_iter().flatten());
        }
        lines.extend(&self.addresses);
        lines.sort_unstable();
        lines.dedup();
        let is_for = |line: &VouchedLine| match &grants[line.grant].holder {
            Holder::Certified {
                subject: Subject::Host(name),
                ..
            } => named.is_for_host(name),
            _ => true,
        };
        lines.into_iter().filter(is_for).take(LINES_MAX).collect()
    }
}

impl Voucher {
    fn read(&self) -> Result<Arc<ClientAuthority>, Arc<AuthorityError>> {
        let Self {
            certificates,
            revoked,
            read,
        } = self;
        let files: Vec<_> = [Some(certificates), revoked.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .collect();
        let in_the_file = |error: &_| matches!(error, AuthorityError::Damaged { .. });
        read.get_strict(
            &files,
            || ClientAuthority::load(certificates, revoked.as_deref()),
            in_the_file,
        )
    }
}
