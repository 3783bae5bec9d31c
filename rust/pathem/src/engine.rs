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
use std::path::Path;
use std::time::Duration;

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
    /// What failed, in words.
    pub fn new(world: World, control: Option<&Path>) -> Result<Self, String> {
        let describe = |error: nix::Error| format!("event loop: {error}");
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(describe)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(describe)?;
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.add(Signal::SIGINT);
        mask.thread_block().map_err(describe)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(describe)?;
        let read = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
        epoll.add(&timer, read(TIMER)).map_err(describe)?;
        epoll.add(&signals, read(SIGNAL)).map_err(describe)?;
        for (node, port) in world.ports.iter().enumerate() {
            epoll
                .add(&port.tun, read(FIRST_NODE + node as u64))
                .map_err(describe)?;
        }
        let control = control
            .map(|path| {
                Control::listen(path, &epoll, LISTENER)
                    .map_err(|error| format!("control socket {}: {error}", path.display()))
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
    /// What failed, in words.
    pub fn run(mut self) -> Result<(), String> {
        let mut events = vec![EpollEvent::empty(); self.world.ports.len() + OTHER_EVENTS];
        while !self.should_stop {
            self.turn(&mut events)
                .map_err(|error| format!("event loop: {error}"))?;
        }
        match &mut self.world.log {
            Some(log) => log.flush().map_err(|error| format!("packet log: {error}")),
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
                        "pathem: the device of node {} is gone",
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
        let plan = deadline.map(|due| self.world.lead.plan(due, monotonic_ns()));
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
        if let Some(late) = until
            .filter(|_| !is_busy)
            .and_then(|until| woke.checked_sub(until))
        {
            self.world.wakeups.add(late, woke);
            self.world.lead.learn(late);
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
