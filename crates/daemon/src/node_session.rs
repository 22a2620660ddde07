//! Authorizes the nodes of a job whose keys are not in this host's list of authorized keys. Such a node presents a
//! grant that was signed by the head of the job, which is the node that leads it. The head's line in the list then
//! applies to the node, but only for the opening that was granted.
//!
//! **Invariant:** the head's line is looked up only after the head's signature has been verified. Otherwise an attacker
//! could find out which keys are authorized. A node does not get all rights of the head, but only the right to write
//! the granted target.

use std::sync::Arc;

use zmove_disk::RemovalBudget;
use zmove_receiver::{Grants, RedeemedGrant};
use zmove_transport::{AuthorizedKeysError, Claim, Denial, Fingerprint};
use zmove_wire::{Open, Refusal};

use crate::access::authorizer::{Authorized, Authorizer};
use crate::access::node_grant::NodeGrant;
use crate::access::refusals::{denied, rights_unreadable};
use crate::copies::grants::SessionResources;
use crate::copies::now;

/// Authorizes a peer by the grant that it presents to this receiver, whose key is `own`. May block on file I/O.
///
/// # Errors
/// Returns an error if the list of keys cannot be read.
pub(crate) fn authorize(
    authorizer: &Authorizer,
    own: Fingerprint,
    claim: &Claim,
    encoded: &[u8],
) -> Result<Result<Authorized, Denial>, Arc<AuthorizedKeysError>> {
    let key = claim.key;
    let denied = |fault| Ok(Err(Denial::JobGrant { key, fault }));
    let grant = match NodeGrant::check(own, key, encoded, now()) {
        Ok(grant) => grant,
        Err(fault) => return denied(fault),
    };
    let may_not = |what, name| denied(format!("its signer {name} may not {what}"));
    match authorizer.authorize(&grant.head)? {
        Ok(head) if head.may_lead() => Ok(Ok(Authorized::from_head_grant(head.name, grant))),
        Ok(head) if head.may_write() => may_not("lead jobs here (zmove allow --lead)", head.name),
        Ok(head) => may_not("write here", head.name),
        Err(denial) => denied(format!("its signing key is not allowed here: {denial}")),
    }
}

/// The session of a node that was authorized by a grant. The session may open only the granted target.
#[derive(Debug)]
pub(crate) struct NodeSession {
    pub(crate) grant: Arc<NodeGrant>,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) resources: SessionResources,
}

impl Grants for NodeSession {
    fn covers(&self, _open: &Open) -> bool {
        true
    }

    fn redeem(&self, open: &Open) -> Result<RedeemedGrant, Refusal> {
        self.grant.check_opening(open)?;
        let claim = &self.grant.head;
        let head = self.authorizer.authorize(claim);
        let head = head.map_err(|_| rights_unreadable())?.ok();
        let head = head.filter(Authorized::may_lead);
        let head =
            head.ok_or_else(|| denied("the key of the leading node may no longer lead jobs here"))?;
        Ok(RedeemedGrant {
            quota: self.resources.charge(claim.key, &head.rights),
            rights: head.rights,
            top_names: self.grant.top_names(),
            allowance: None,
            removals: Arc::new(RemovalBudget::new(0)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::node_grant::{AHEAD_SECS_MAX, VALID_SECS_MAX};
    use zmove_disk::RootGuard;
    use zmove_receiver::Limits;
    use zmove_transport::{Access, AuthorizedKeys, Grant, Identity, KeyList};
    use zmove_types::{Beginning, Name, SharedJobId};
    use zmove_wire::{JobGrant, SharedJobOpening, SignedJobGrant, TargetShape};

    const NODE: Fingerprint = Fingerprint([1; 32]);
    const RECEIVER: Fingerprint = Fingerprint([2; 32]);

    /// A receiver that authorizes a head with these rights.
    struct Site {
        home: tempfile::TempDir,
        authorizer: Arc<Authorizer>,
        head: Identity,
    }

    fn opening(target: &str, job: u8) -> Open {
        let part = SharedJobOpening {
            job: SharedJobId([job; 16]),
            beginning: Beginning::UnderWay,
            leads: false,
        };
        Open {
            shared_job: Some(Box::new(part)),
            ..Open::new(target.into(), [0; 16])
        }
    }

    fn granted(open: Open) -> JobGrant {
        let (not_before, not_after) = (now() - 5, now() + 3600);
        JobGrant {
            node: NODE.0,
            receivers: vec![[9; 32], RECEIVER.0],
            open,
            not_before,
            not_after,
        }
    }

    fn usual() -> JobGrant {
        granted(opening("t", 7))
    }

    impl Site {
        fn new(access: Access) -> Self {
            let home = tempfile::tempdir().unwrap();
            let head = Identity::for_once().unwrap();
            let grant = Grant::new(
                head.fingerprint(),
                "ann",
                vec![home.path().to_owned()],
                access,
            );
            let grant = Grant {
                lead: true,
                max_rate: Some("1MB".parse().unwrap()),
                ..grant
            };
            AuthorizedKeys::allow(home.path(), grant).unwrap();
            let authorizer = Arc::new(Authorizer::Listed(
                KeyList::new(home.path().to_owned()),
                RootGuard::default(),
            ));
            Self {
                home,
                authorizer,
                head,
            }
        }

        fn judge(
            &self,
            encoded: &[u8],
            (key, own): (Fingerprint, Fingerprint),
        ) -> Result<Authorized, String> {
            let claim = Claim::again(key, Vec::new());
            let judged = authorize(&self.authorizer, own, &claim, encoded).unwrap();
            judged.map_err(|denial| denial.to_string())
        }

        fn signed(&self, grant: JobGrant) -> Vec<u8> {
            self.head.sign_job_grant(grant).unwrap().encode()
        }

        fn fault_of(&self, grant: JobGrant) -> String {
            self.judge(&self.signed(grant), (NODE, RECEIVER))
                .unwrap_err()
        }

        /// Returns the session of a node with this grant.
        fn session(&self, grant: JobGrant) -> NodeSession {
            let authorized = self.judge(&self.signed(grant), (NODE, RECEIVER)).unwrap();
            let (rate, rates, quotas, granter) = Default::default();
            let resources = SessionResources {
                rate,
                rates,
                quotas,
                limits: Limits::default(),
                granter,
            };
            let authorizer = Arc::clone(&self.authorizer);
            NodeSession {
                grant: authorized.node.unwrap(),
                authorizer,
                resources,
            }
        }
    }

    #[test]
    fn a_node_has_nothing_but_what_its_head_has_granted() {
        let site = Site::new(Access::ReadWrite);
        let node = site.judge(&site.signed(usual()), (NODE, RECEIVER)).unwrap();
        assert!(
            !node.may_write() && node.reads.is_none(),
            "by itself it may nothing"
        );
        assert_eq!(
            (node.name.as_str(), node.by_grants_of[0].key),
            ("ann", site.head.fingerprint())
        );
        let taken = site.session(usual()).redeem(&opening("t", 7)).unwrap();
        assert_eq!(taken.rights.owner, site.head.fingerprint().to_string());
        assert!(taken.rights.rate_max.is_some() && taken.allowance.is_none());
        assert_eq!(taken.removals.left(), 0);
    }

    #[test]
    fn a_grant_of_another_node_receiver_or_time_does_not_count() {
        let site = Site::new(Access::WriteOnly);
        let encoded = site.signed(usual());
        let other = Fingerprint([3; 32]);
        let fault = site.judge(&encoded, (other, RECEIVER)).unwrap_err();
        assert!(fault.contains("the key of another node"), "{fault}");
        let fault = site.judge(&encoded, (NODE, other)).unwrap_err();
        assert!(fault.contains("for other receivers"), "{fault}");
        let at = |not_before, not_after| {
            site.fault_of(JobGrant {
                not_before,
                not_after,
                ..usual()
            })
        };
        let now = now();
        let ended = at(now - 3700, now - 65);
        assert!(
            ended.contains(": it expired 1 min ago by the receiver's clock, which may be ahead"),
            "{ended}"
        );
        assert!(at(now - 10, 0).contains(": it expired "));
        let ahead = at(now + AHEAD_SECS_MAX + 115, now + 3600);
        assert!(
            ahead.contains(
                ": the receiver's clock is at least 11 min behind the clock of the leading node"
            ),
            "{ahead}"
        );
        assert!(at(now - 10, now + VALID_SECS_MAX).contains("for more than one day"));
        assert!(at(0, u64::MAX).contains("for more than one day"));
        site.session(JobGrant {
            not_before: now + AHEAD_SECS_MAX - 60,
            ..usual()
        });
    }

    #[test]
    fn a_grant_by_a_key_that_may_not_write_or_lead_here_does_not_count() {
        let site = Site::new(Access::ReadOnly);
        assert!(
            site.fault_of(usual())
                .contains("its signer ann may not write here")
        );
        let site = Site::new(Access::ReadWrite);
        let list = site.home.path().join("authorized_keys");
        let lines = std::fs::read_to_string(&list).unwrap();
        std::fs::write(&list, lines.replace(" lead", "")).unwrap();
        assert!(
            site.fault_of(usual())
                .contains("its signer ann may not lead jobs here")
        );
        let stranger = Identity::for_once().unwrap();
        let encoded = stranger.sign_job_grant(usual()).unwrap().encode();
        let fault = site.judge(&encoded, (NODE, RECEIVER)).unwrap_err();
        assert!(
            fault.ends_with(&format!(
                "is not allowed here: unknown key {}",
                stranger.fingerprint()
            )),
            "{fault}"
        );
    }

    /// A peer must not find out which keys are authorized.
    #[test]
    fn nothing_is_told_of_the_head_s_line_without_its_signature() {
        let site = Site::new(Access::WriteOnly);
        let forger = Identity::for_once()
            .unwrap()
            .sign_job_grant(usual())
            .unwrap();
        let certificates = site.head.sign_job_grant(usual()).unwrap().certificates;
        let forged = SignedJobGrant {
            certificates,
            ..forger
        }
        .encode();
        let fault = site.judge(&forged, (NODE, RECEIVER)).unwrap_err();
        assert!(
            fault.ends_with("its signature is invalid") && !fault.contains("ann"),
            "{fault}"
        );
    }

    #[test]
    fn no_bit_of_a_grant_can_change_and_no_part_of_it_counts() {
        let site = Site::new(Access::WriteOnly);
        let encoded = site.signed(usual());
        let judged = |bytes: &[u8]| site.judge(bytes, (NODE, RECEIVER));
        judged(&encoded).unwrap();
        let text_bytes = usual().encode().len();
        // The certificate has fields that are not checked.
        for bit in 0..8 * (20 + text_bytes) {
            let mut flipped = encoded.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(judged(&flipped).is_err(), "{bit}");
        }
        for length in 0..encoded.len() {
            assert!(judged(&encoded[..length]).is_err(), "{length}");
        }
        assert!(
            judged(&[0; 64])
                .unwrap_err()
                .contains("it cannot be decoded")
        );
        assert!(judged(&[&encoded[..], &vec![0; SignedJobGrant::BYTES_MAX]].concat()).is_err());
    }

    #[test]
    fn only_the_opening_that_was_granted_is_taken_up() {
        let site = Site::new(Access::ReadWrite);
        let session = site.session(usual());
        let refused = |open: Open| session.redeem(&open).unwrap_err().text;
        assert!(refused(opening("t", 8)).contains("another job"));
        let mut begins = opening("t", 7);
        begins.shared_job.as_mut().unwrap().beginning = Beginning::Allowed;
        assert!(
            refused(begins).contains("another job"),
            "the head begins it"
        );
        for target in ["", "..", "t/../u", "t/..", "u", "t/u", "/t"] {
            assert!(
                refused(opening(target, 7)).contains("another target"),
                "{target}"
            );
        }
        assert!(
            refused(Open {
                shared_job: None,
                ..opening("t", 7)
            })
            .contains("a part of a job")
        );
        let shape = TargetShape::Single {
            name: Name::from_bytes(b"n").unwrap(),
        };
        assert!(
            refused(Open {
                shape,
                ..opening("t", 7)
            })
            .contains("other options")
        );
        assert!(
            refused(Open {
                grant: Some([0; 32]),
                ..opening("t", 7)
            })
            .contains("other options")
        );
        assert!(
            refused(Open {
                inplace: true,
                ..opening("t", 7)
            })
            .contains("other options")
        );
        let tops = vec![Name::from_bytes(b"n").unwrap()];
        let other = Open {
            run: [5; 16],
            shape: TargetShape::Directory { tops },
            ..opening("t", 7)
        };
        session.redeem(&other).unwrap();
    }

    #[test]
    fn a_grant_for_no_job_does_not_count() {
        let site = Site::new(Access::ReadWrite);
        let plain = granted(Open {
            shared_job: None,
            ..opening("t", 7)
        });
        assert!(site.fault_of(plain).contains("not for a job"));
        let mut begins = opening("t", 7);
        begins.shared_job.as_mut().unwrap().beginning = Beginning::Allowed;
        assert!(site.fault_of(granted(begins)).contains("not for a job"));
    }

    #[test]
    fn a_node_brings_only_the_names_that_were_granted() {
        let site = Site::new(Access::ReadWrite);
        let path = |text: &str| zmove_types::RelPath::from_bytes(text.as_bytes()).unwrap();
        let names = |tops: &[&str]| {
            let tops = tops
                .iter()
                .map(|top| Name::from_bytes(top.as_bytes()).unwrap())
                .collect();
            let open = Open {
                shape: TargetShape::Directory { tops },
                ..opening("t", 7)
            };
            site.session(granted(open))
                .redeem(&opening("t", 7))
                .unwrap()
                .top_names
        };
        let run7 = names(&["run7"]);
        assert!(run7.check(&path("run7/a/b")).is_ok() && run7.check(&path("run8")).is_err());
        assert!(names(&[]).check(&path("run8")).is_ok());
    }

    #[test]
    fn a_grant_ends_with_the_line_of_its_head() {
        let site = Site::new(Access::ReadWrite);
        let session = site.session(usual());
        AuthorizedKeys::remove(site.home.path(), "ann").unwrap();
        let refusal = session.redeem(&opening("t", 7)).unwrap_err();
        assert!(
            refusal.text.contains("may no longer lead jobs here"),
            "{refusal:?}"
        );
        assert!(site.fault_of(usual()).contains("is not allowed here"));
    }
}
