//! Waking a little before a packet is due, by what waking takes on this host.
//!
//! A timer fires, and the loop then runs some 10 to 100 us later: interrupt, hypervisor, cold caches. KVM meets the same
//! cost in the same way (`lapic_timer_advance_ns`). The loop sleeps until `due` minus a lead that it learns from its own
//! wakings, and asks for events without sleeping in what is left. That polling has a budget, so that many packets per
//! millisecond do not make it spin.
//!
//! A packet that ends a sleep waits as long until the loop runs. Its arrival is told from the time of waking by the same
//! lead: without that, round trips are longer by it (10 to 80 us on a virtual machine whose CPUs are kept awake by
//! threads).

/// Longest lead, ns: more than waking takes where the CPUs are kept awake.
const LONGEST_NS: u64 = 300_000;
/// The lead follows the 75th percentile of wakings: it grows by three steps where one was later, else shrinks by one.
const STEP_NS: u64 = 1_000;
const STEPS_UP: u64 = 3;
/// The part of the time that may be spent polling is one over this number.
const SHARE: u64 = 8;
/// Budget that may be saved up, ns.
const LARGEST_BUDGET_NS: u64 = 2_000_000;

/// What the loop should do until the next packet is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Not sleep: it is due, or will be in a moment.
    Poll,
    /// Sleep until this time, ns.
    Sleep(u64),
}

/// The lead, and the budget for polling.
#[derive(Debug, Default)]
pub struct Lead {
    present_ns: u64,
    budget_ns: u64,
    /// When [`Lead::plan`] was last asked.
    asked_ns: u64,
    is_polling: bool,
}

impl Lead {
    /// What to do at `now` about a packet that is due at `due`, both ns. `now` must not go back between calls.
    pub fn plan(&mut self, due: u64, now: u64) -> Plan {
        let elapsed = now - self.asked_ns;
        self.asked_ns = now;
        self.budget_ns = if self.is_polling {
            self.budget_ns.saturating_sub(elapsed)
        } else {
            LARGEST_BUDGET_NS.min(self.budget_ns + elapsed / SHARE)
        };
        let is_close = due <= now + self.present_ns;
        self.is_polling = is_close && due > now && self.budget_ns >= due - now;
        if due <= now || self.is_polling {
            Plan::Poll
        } else if is_close {
            Plan::Sleep(due)
        } else {
            Plan::Sleep(due - self.present_ns)
        }
    }

    /// Learns from a sleep that was to end `late` ns before it did.
    pub fn learn(&mut self, late: u64) {
        self.present_ns = if late > self.present_ns {
            LONGEST_NS.min(self.present_ns + STEPS_UP * STEP_NS)
        } else {
            self.present_ns.saturating_sub(STEP_NS)
        };
    }

    /// When a packet arrived that ended a sleep from `asleep` to `woke`: not before the sleep began. All ns.
    #[must_use]
    pub fn arrival(&self, asleep: u64, woke: u64) -> u64 {
        woke.saturating_sub(self.present_ns).max(asleep)
    }

    /// The present lead, ns.
    #[must_use]
    pub fn present_ns(&self) -> u64 {
        self.present_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taught(late: u64) -> Lead {
        let mut lead = Lead::default();
        assert_eq!(lead.plan(1_000_000_000, 0), Plan::Sleep(1_000_000_000));
        (0..200).for_each(|_| lead.learn(late));
        lead
    }

    #[test]
    fn the_lead_follows_what_waking_takes() {
        let mut lead = taught(50_000);
        assert!((47_000..=53_000).contains(&lead.present_ns()));
        (0..400).for_each(|_| lead.learn(5_000));
        assert!(lead.present_ns() <= 8_000);
        (0..400).for_each(|_| lead.learn(u64::MAX));
        assert_eq!(lead.present_ns(), LONGEST_NS);
    }

    #[test]
    fn it_sleeps_until_shortly_before_and_polls_the_rest() {
        let mut lead = taught(50_000);
        let (due, early) = (10_000_000, lead.present_ns());
        assert_eq!(lead.plan(due, 5_000_000), Plan::Sleep(due - early));
        assert_eq!(lead.plan(due, due - early), Plan::Poll);
        assert_eq!(lead.plan(due, due - 1), Plan::Poll);
        assert_eq!(lead.plan(due, due + 1), Plan::Poll);
    }

    #[test]
    fn what_ended_a_sleep_arrived_a_waking_earlier_but_within_the_sleep() {
        let lead = taught(50_000);
        let early = lead.present_ns();
        assert_eq!(lead.arrival(1_000_000, 9_000_000), 9_000_000 - early);
        assert_eq!(lead.arrival(8_999_000, 9_000_000), 8_999_000);
        assert_eq!(Lead::default().arrival(0, 9_000_000), 9_000_000);
    }

    #[test]
    fn polling_takes_an_eighth_of_the_time_at_most() {
        let mut lead = taught(100_000);
        let mut now = 0;
        let mut polled = 0;
        let step = 1_000;
        while now < 1_000_000_000 {
            // A packet is always due within the lead.
            let due = now + 50_000;
            let plan = lead.plan(due, now);
            polled += if plan == Plan::Poll { step } else { 0 };
            now += step;
        }
        let share = polled as f64 / now as f64;
        assert!((0.08..=0.13).contains(&share), "{share}");
    }
}
