//! What a program gives up for good before it reads a stranger's bytes (docs/design/privilege.md).
//!
//! Called when code, certificates and sockets are there, as the last step before the first packet. A rule that a kernel
//! lacks is left out, the others hold. `core/system/confine.py` does the same, with the reasons for this order.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::str::FromStr;

use crate::clock::Usage;
use caps::CapSet;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Uid, getppid, setgroups, setresgid, setresuid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

const OPEN_FILES: u64 = 64;
/// Address space. A client that holds 64 MiB of body needs a quarter of it.
const MEMORY_BYTES: u64 = 1 << 30;
/// The newest of Landlock's versions that is asked for; the crate leaves out what a kernel lacks.
const NEWEST: ABI = ABI::V6;
const NEW_THREAD: u64 = nix::libc::CLONE_THREAD as u64;

/// User and group that a program becomes, where it may change its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    uid: u32,
    gid: u32,
}

impl Default for User {
    /// nobody: the kernel's overflow IDs, which own nothing.
    fn default() -> Self {
        Self {
            uid: 65534,
            gid: 65534,
        }
    }
}

impl FromStr for User {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once(':')
            .and_then(|(uid, gid)| {
                Some(Self {
                    uid: uid.parse().ok().filter(|uid| *uid > 0)?,
                    gid: gid.parse().ok()?,
                })
            })
            .ok_or("use UID:GID of an ordinary user")
    }
}

/// Gives up all that the process does not need to talk to one server. It must have no second thread.
///
/// `port`: the TCP port that may be connected to; UDP is not restricted (landlock(7)).
///
/// # Errors
/// A rule that this kernel knows could not be set.
pub fn confine(port: Option<u16>, user: User) -> io::Result<()> {
    let _ = Usage::now(); // opens what cannot be opened any more
    give_up(port, user)
        .map_err(|error| io::Error::other(format!("cannot give up its rights: {error}")))
}

fn give_up(port: Option<u16>, user: User) -> Result<(), Box<dyn Error>> {
    for (limit, value) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_NOFILE, OPEN_FILES),
        (Resource::RLIMIT_AS, MEMORY_BYTES),
    ] {
        let value = getrlimit(limit)?.1.min(value);
        setrlimit(limit, value, value)?;
    }
    prctl::set_no_new_privs()?;
    let (signal, parent) = (prctl::get_pdeathsig()?, getppid());
    let _ = caps::clear(None, CapSet::Bounding); // without the right to drop any, none can be gained either
    let _ = leave_user(user); // without the rights of root it stays who it is
    prctl::set_pdeathsig(signal)?;
    if signal.is_some() && getppid() != parent {
        std::process::exit(71); // the parent died while nothing would have told us
    }
    for set in [
        CapSet::Ambient,
        CapSet::Inheritable,
        CapSet::Effective,
        CapSet::Permitted,
    ] {
        caps::clear(None, set)?;
    }
    restrict(port)?;
    for filter in filters()? {
        apply_filter(&filter)?;
    }
    Ok(())
}

fn leave_user(user: User) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

fn restrict(port: Option<u16>) -> Result<(), Box<dyn Error>> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let ports = port.map(|port| NetPort::new(port, AccessNet::ConnectTcp));
    rules
        .add_rules(ports.into_iter().map(Ok::<_, landlock::RulesetError>))?
        .restrict_self()?;
    Ok(())
}

/// Filters of system calls: the process may make threads, and nothing that runs something else.
fn filters() -> Result<Vec<BpfProgram>, Box<dyn Error>> {
    let not_a_thread = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(NEW_THREAD),
        0,
    )?;
    let mut refused = BTreeMap::from([(
        nix::libc::SYS_clone,
        vec![SeccompRule::new(vec![not_a_thread])?],
    )]);
    #[cfg(target_arch = "x86_64")]
    refused.extend([
        (nix::libc::SYS_fork, Vec::new()),
        (nix::libc::SYS_vfork, Vec::new()),
    ]);
    refused.extend(
        [
            nix::libc::SYS_execve,
            nix::libc::SYS_execveat,
            nix::libc::SYS_unshare,
            nix::libc::SYS_setns,
            nix::libc::SYS_ptrace,
        ]
        .map(|call| (call, Vec::new())),
    );
    // clone3 has its flags in memory, where no filter sees them; without it the C library uses clone.
    let unknown = BTreeMap::from([(nix::libc::SYS_clone3, Vec::new())]);
    let Ok(machine) = TargetArch::try_from(std::env::consts::ARCH) else {
        return Ok(Vec::new());
    };
    [(refused, Errno::EPERM), (unknown, Errno::ENOSYS)]
        .into_iter()
        .map(|(calls, errno)| {
            let answer = SeccompAction::Errno(errno as u32);
            let filter = SeccompFilter::new(calls, SeccompAction::Allow, answer, machine)?;
            Ok(filter.try_into()?)
        })
        .collect()
}
