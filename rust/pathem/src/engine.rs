//! The event loop: one thread, epoll, and a timer descriptor on the monotonic clock.

use crate::control::{Control, FIRST_CLIENT_TOKEN};
use crate::host::monotonic_ns;
use crate::jobs::Wish;
use crate::lead::Plan;
use crate::world::World;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// What ended the event loop, or kept it from starting.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The kernel refuses epoll, the timer, or signals.
    #[error("event loop: {0}")]
    Loop(#[from] nix::Error),
    /// There is no control socket.
    #[error("control socket {}: {error}", .path.display())]
    Control {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The packet log cannot be written.
    #[error("packet log: {0}")]
    PacketLog(io::Error),
}

const TIMER: u64 = 0;
const SIGNAL: u64 = 1;
const LISTENER: u64 = 2;
const FIRST_NODE: u64 = 16;
/// Packets per node and turn, so that one busy node cannot delay the others for long.
const READS_PER_TURN: usize = 32;
const WRITES_PER_TURN: usize = 64;
const OTHER_EVENTS: usize = 80;

/// The loop with its descriptors.
pub struct Engine {
    epoll: Epoll,
    timer: TimerFd,
    signals: SignalFd,
    control: Option<Control>,
    world: World,
    /// When the timer is set to ring, ns.
    armed: Option<u64>,
    should_stop: bool,
}

impl Engine {
    /// Sets up the loop: all devices, the timer, SIGTERM and SIGINT, and the control socket.
    ///
    /// # Errors
    /// The kernel refuses the loop, or the control socket.
    pub fn new(world: World, control: Option<&Path>) -> Result<Self, EngineError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.add(Signal::SIGINT);
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let read = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
        epoll.add(&timer, read(TIMER))?;
        epoll.add(&signals, read(SIGNAL))?;
        for (node, port) in world.ports.iter().enumerate() {
            epoll.add(&port.tun, read(FIRST_NODE + node as u64))?;
        }
        let control = control
            .map(|path| {
                Control::listen(path, &epoll, LISTENER).map_err(|error| EngineError::Control {
                    path: path.to_owned(),
                    error,
                })
            })
            .transpose()?;
        Ok(Self {
            epoll,
            timer,
            signals,
            control,
            world,
            armed: None,
            should_stop: false,
        })
    }

    /// Runs until a signal or the control peer says stop, then flushes the packet log.
    ///
    /// # Errors
    /// The kernel refuses to wait, or the packet log cannot be written.
    pub fn run(mut self) -> Result<(), EngineError> {
        let mut events = vec![EpollEvent::empty(); self.world.ports.len() + OTHER_EVENTS];
        while !self.should_stop {
            self.turn(&mut events)?;
        }
        match &mut self.world.log {
            Some(log) => log.flush().map_err(EngineError::PacketLog),
            None => Ok(()),
        }
    }

    fn turn(&mut self, events: &mut [EpollEvent]) -> nix::Result<()> {
        let (woke, count) = self.wait(events)?;
        let ready = &events[..count];
        if self.control.as_ref().is_some_and(Control::has_jobs) {
            self.note_empty(ready, woke);
        }
        self.world.deliver_due(WRITES_PER_TURN);
        for event in ready {
            if let Some(node) = node_of(event.data()) {
                if !self.world.read_node(node, READS_PER_TURN) {
                    eprintln!(
                        "pathem: the device of node {} no longer exists",
                        self.world.router.nodes[node].name
                    );
                    self.epoll.delete(&self.world.ports[node].tun)?;
                }
                self.world.deliver_due(WRITES_PER_TURN);
            }
        }
        self.serve(ready);
        let end = monotonic_ns();
        self.world.iterations.add(end - woke, end);
        Ok(())
    }

    /// Waits for an event or the next deadline. Gives the time of waking and the number of events.
    fn wait(&mut self, events: &mut [EpollEvent]) -> nix::Result<(u64, usize)> {
        let wish = self
            .control
            .as_ref()
            .and_then(|control| control.wish(&self.world));
        let mut deadline = self.world.router.next_due();
        if let Some(Wish::Before(time)) = wish {
            deadline = Some(deadline.map_or(time, |due| due.min(time)));
        }
        let asleep = monotonic_ns();
        let plan = deadline.map(|due| self.world.lead.plan(due, asleep));
        let is_busy = wish == Some(Wish::Now) || plan == Some(Plan::Poll);
        let until = match plan {
            Some(Plan::Sleep(until)) => Some(until),
            _ => None,
        };
        let timeout = if is_busy {
            EpollTimeout::ZERO
        } else {
            EpollTimeout::NONE
        };
        if !is_busy {
            self.arm(until)?;
        }
        let count = match self.epoll.wait(events, timeout) {
            Err(nix::Error::EINTR) => 0,
            other => other?,
        };
        let woke = monotonic_ns();
        self.world.first_arrival = None;
        if is_busy {
            return Ok((woke, count));
        }
        if let Some(late) = until.and_then(|until| woke.checked_sub(until)) {
            self.world.wakeups.add(late, woke);
            self.world.lead.learn(late);
        } else {
            self.world.first_arrival = Some(self.world.lead.arrival(asleep, woke));
        }
        Ok((woke, count))
    }

    fn arm(&mut self, deadline: Option<u64>) -> nix::Result<()> {
        if deadline == self.armed {
            return Ok(());
        }
        self.armed = deadline;
        let Some(time) = deadline else {
            return self.timer.unset();
        };
        let expiration = Expiration::OneShot(TimeSpec::from_duration(Duration::from_nanos(time)));
        self.timer
            .set(expiration, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }

    /// Every device that epoll did not report was empty when it answered.
    fn note_empty(&mut self, ready: &[EpollEvent], woke: u64) {
        for (node, port) in self.world.ports.iter_mut().enumerate() {
            if !ready
                .iter()
                .any(|event| node_of(event.data()) == Some(node))
            {
                port.empty_at = woke;
            }
        }
    }

    /// Signals and control clients, after the packets.
    fn serve(&mut self, ready: &[EpollEvent]) {
        for event in ready {
            if event.data() == SIGNAL && matches!(self.signals.read_signal(), Ok(Some(_))) {
                self.should_stop = true;
            }
        }
        let Some(control) = &mut self.control else {
            return;
        };
        for event in ready {
            match event.data() {
                LISTENER => control.accept(&self.epoll),
                token if token >= FIRST_CLIENT_TOKEN => control.event(token, event.events()),
                _ => {}
            }
        }
        control.step(&mut self.world, &self.epoll);
        self.should_stop |= self.world.stopping;
    }
}

fn node_of(token: u64) -> Option<usize> {
    if (FIRST_NODE..FIRST_CLIENT_TOKEN).contains(&token) {
        usize::try_from(token - FIRST_NODE).ok()
    } else {
        None
    }
}
