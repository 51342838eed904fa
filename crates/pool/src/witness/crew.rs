//! The closers of a witness: who of them does what for which account.
//!
//! # Invariants
//!
//! - A closer works for one account at a time, and for another only after it said that it has
//!   closed all.
//! - An account has at most [`PER_ACCOUNT_MAX`] closers, and fewer the more the others have: of
//!   what is left it gets a sixteenth, so that some are left for the next account.
//! - The witness has no connection alone but one for which no closer could be had: the service has
//!   it, or a closer.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Question;
use super::account::Account;
use super::closer::{Said, Task};
use crate::link::Link;
use crate::process::Process;

/// Most closers of an account: one of them holds what the others do not get to.
pub(super) const PER_ACCOUNT_MAX: usize = 16;

/// Most closers that have something to do.
pub(super) const ALL_MAX: usize = 256;

/// Descriptors that a closer has beside the connections that it holds.
const OTHER_FILES: u64 = 64;

/// Closers without anything to do that stay.
const IDLE_MAX: usize = 2;

/// A closer that was started.
pub(super) struct Hired {
    pub(super) line: Link,
    /// `None`: its end shows at the line.
    pub(super) process: Option<Process>,
}

/// What a closer does.
#[derive(Debug)]
enum Doing {
    /// Nothing: it has no descriptor of a client's.
    Nothing,
    /// It looks at a process and closes what that one showed.
    Looks(Account, Box<Question>),
    /// It holds so many connections; the service has those with these numbers, too.
    Holds(Account, usize, HashSet<u64>),
    /// It closes what it held.
    Closes(Account),
}

struct Closer {
    /// `None`: it has closed its end, or is to end.
    line: Option<Link>,
    process: Option<Process>,
    doing: Doing,
}

impl Closer {
    fn account(&self) -> Option<Account> {
        match &self.doing {
            Doing::Nothing => None,
            Doing::Looks(account, _) | Doing::Holds(account, ..) | Doing::Closes(account) => {
                Some(*account)
            }
        }
    }

    fn holds_for(&self, account: Account) -> bool {
        matches!(self.doing, Doing::Holds(one, ..) if one == account)
    }

    /// `false`: it has ended.
    fn tell(&self, task: &Task, connection: Option<&OwnedFd>) -> bool {
        let fds: Vec<_> = connection.iter().map(AsFd::as_fd).collect();
        self.line.as_ref().is_some_and(|line| line.send(task, &fds).is_ok())
    }
}

/// A connection for which no closer could be had.
struct Waiting {
    account: Account,
    number: u64,
    connection: OwnedFd,
    /// The service has let go of it.
    alone: bool,
}

/// All closers.
pub(super) struct Crew {
    hire: Box<dyn FnMut() -> Option<Hired>>,
    closers: BTreeMap<u64, Closer>,
    last: u64,
    waiting: Vec<Waiting>,
    /// A closer could not be started, for want of memory or descriptors.
    short: bool,
    /// Most connections that a closer holds.
    held_max: usize,
}

impl Crew {
    /// None yet; `hire` starts one.
    pub(super) fn new(hire: impl FnMut() -> Option<Hired> + 'static) -> Crew {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let held_max = files.map_or(usize::MAX, |most| most.saturating_sub(OTHER_FILES) as usize);
        let (closers, waiting) = (BTreeMap::new(), Vec::new());
        Crew { hire: Box::new(hire), closers, last: 0, waiting, short: false, held_max }
    }

    /// Has a process looked at, whose connection is closed then. `false`: its account has as many
    /// closers as it may.
    pub(super) fn look(
        &mut self,
        account: Account,
        question: &Question,
        connection: Option<&OwnedFd>,
    ) -> bool {
        if self.count(|_| true) >= ALL_MAX || self.busy(account) >= self.share(account) {
            return false;
        }
        let Some(id) = self.idle() else { return false };
        let Some(closer) = self.closers.get_mut(&id) else { return false };
        closer.doing = Doing::Looks(account, Box::new(question.clone()));
        closer.tell(&Task::Look(question.clone()), connection)
    }

    /// Has a connection held that the service is about to let go of.
    pub(super) fn hold(&mut self, account: Account, number: u64, connection: OwnedFd) {
        if !self.try_hold(account, Some(number), &connection) {
            self.waiting.push(Waiting { account, number, connection, alone: false });
        }
    }

    /// `number`: the service has it, too, by that number.
    fn try_hold(&mut self, account: Account, number: Option<u64>, connection: &OwnedFd) -> bool {
        let most = self.held_max;
        let has_room = |closer: &&mut Closer| match closer.doing {
            Doing::Holds(one, count, _) => one == account && count < most,
            _ => false,
        };
        let tell = |closer: &mut Closer| {
            let told = closer.tell(&Task::Hold, Some(connection));
            if told && let Doing::Holds(_, count, numbers) = &mut closer.doing {
                *count += 1;
                numbers.extend(number);
            }
            told
        };
        if self.closers.values_mut().filter(has_room).any(tell) {
            return true;
        }
        let own = self.count(|one| one == account);
        if self.count(|_| true) >= ALL_MAX || own >= PER_ACCOUNT_MAX {
            return false;
        }
        let Some(id) = self.idle() else { return false };
        let Some(closer) = self.closers.get_mut(&id) else { return false };
        closer.doing = Doing::Holds(account, 0, HashSet::new());
        tell(closer)
    }

    /// The service has let go of the connection with that number.
    pub(super) fn let_go(&mut self, number: u64) {
        for closer in self.closers.values_mut() {
            if let Doing::Holds(account, _, numbers) = &mut closer.doing
                && numbers.remove(&number)
            {
                let account = *account;
                return self.close(account);
            }
        }
        if let Some(waiting) = self.waiting.iter_mut().find(|one| one.number == number) {
            waiting.alone = true;
        }
    }

    /// Has closed what is held for an account, if it may have one more that closes.
    fn close(&mut self, account: Account) {
        if self.busy(account) >= self.share(account) {
            return;
        }
        let is_alone = |closer: &&mut Closer| {
            closer.holds_for(account)
                && matches!(&closer.doing, Doing::Holds(_, 1.., numbers) if numbers.is_empty())
        };
        if let Some(closer) = self.closers.values_mut().find(is_alone) {
            closer.doing = Doing::Closes(account);
            closer.tell(&Task::Close, None);
        }
    }

    /// How many closers an account may have that look or close.
    fn share(&self, account: Account) -> usize {
        let left = ALL_MAX.saturating_sub(self.count(|one| one != account));
        (left / PER_ACCOUNT_MAX).clamp(1, PER_ACCOUNT_MAX - 1)
    }

    /// Closers that do something for such accounts.
    fn count(&self, is: impl Fn(Account) -> bool) -> usize {
        self.closers.values().filter_map(Closer::account).filter(|account| is(*account)).count()
    }

    /// Closers that look or close for an account.
    fn busy(&self, account: Account) -> usize {
        let all = self.closers.values();
        all.filter(|one| one.account() == Some(account) && !one.holds_for(account)).count()
    }

    /// One that does nothing, or a new one.
    fn idle(&mut self) -> Option<u64> {
        let is_idle =
            |closer: &Closer| closer.line.is_some() && matches!(closer.doing, Doing::Nothing);
        if let Some((id, _)) = self.closers.iter().find(|(_, closer)| is_idle(closer)) {
            return Some(*id);
        }
        let hired = (self.hire)();
        self.short = hired.is_none();
        let Hired { line, process } = hired?;
        self.last += 1;
        let closer = Closer { line: Some(line), process, doing: Doing::Nothing };
        self.closers.insert(self.last, closer);
        Some(self.last)
    }

    /// What a wait for closers waits for, and which closer each is of: lines, and processes.
    pub(super) fn awaited(&self) -> impl Iterator<Item = (u64, bool, BorrowedFd<'_>)> {
        self.closers.iter().flat_map(|(id, closer)| {
            let line = closer.line.iter().map(|line| (*id, false, line.as_fd()));
            line.chain(closer.process.iter().map(|process| (*id, true, process.as_fd())))
        })
    }

    /// Receives what a closer says. What it found out about a question comes back.
    pub(super) fn hear(&mut self, id: u64) -> Option<(Account, Question, Said, Vec<OwnedFd>)> {
        let closer = self.closers.get_mut(&id)?;
        let heard = closer.line.as_ref()?.receive::<Said>();
        match (heard, &closer.doing) {
            (Ok(Some((Said::Free, _))), _) => {
                let account = closer.account();
                closer.doing = Doing::Nothing;
                self.freed(id, account);
                None
            }
            (Ok(Some((said, fds))), Doing::Looks(account, question)) => {
                Some((*account, Question::clone(question), said, fds))
            }
            (Ok(Some(_)), _) => None,
            (Ok(None) | Err(_), _) => {
                // Until its process has ended it may have descriptors of its account's.
                closer.line = None;
                if closer.process.is_none() {
                    self.ended(id);
                }
                None
            }
        }
    }

    /// A closer's process has ended.
    pub(super) fn ended(&mut self, id: u64) {
        let Some(mut closer) = self.closers.remove(&id) else { return };
        if let Some(process) = &mut closer.process {
            let _ = process.wait();
        }
        let account = closer.account();
        self.freed(id, account);
    }

    /// A closer has nothing of that account any more.
    fn freed(&mut self, id: u64, account: Option<Account>) {
        if let Some(account) = account {
            self.close(account);
        }
        self.hold_waiting();
        let is_idle =
            |closer: &&Closer| closer.line.is_some() && matches!(closer.doing, Doing::Nothing);
        let idle = self.closers.values().filter(is_idle).count();
        if idle > IDLE_MAX
            && let Some(closer) = self.closers.get_mut(&id)
            && is_idle(&&*closer)
        {
            closer.line = None;
        }
    }

    /// Tries again to have held what no closer could be started for.
    pub(super) fn try_again(&mut self) {
        if self.short && !self.waiting.is_empty() {
            self.hold_waiting();
        }
    }

    /// Has held what waits, as far as closers can be had.
    fn hold_waiting(&mut self) {
        self.short = false;
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { account, number, connection, alone } = waiting;
            let other = (!alone).then_some(number);
            // Each start that fails takes time.
            if self.short || !self.try_hold(account, other, &connection) {
                self.waiting.push(Waiting { account, number, connection, alone });
            } else if alone {
                drop(connection);
                self.close(account);
            }
        }
    }

    /// Lets all of them close what they have, and end.
    pub(super) fn end(mut self) {
        for Waiting { account, connection, .. } in std::mem::take(&mut self.waiting) {
            // Whose it is does not count any more: what holds something closes it and ends.
            let mut all = self.closers.values();
            let is_held = all.any(|one| {
                matches!(one.doing, Doing::Holds(..)) && one.tell(&Task::Hold, Some(&connection))
            });
            // The first one beyond all limits holds the rest as well.
            if !is_held
                && let Some(id) = self.idle()
                && let Some(closer) = self.closers.get_mut(&id)
            {
                closer.doing = Doing::Holds(account, 1, HashSet::new());
                closer.tell(&Task::Hold, Some(&connection));
            }
        }
        for process in self.closers.into_values().filter_map(|closer| closer.process) {
            process.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// Closers that do what the test says.
    #[derive(Clone, Default)]
    struct Others(Rc<RefCell<Vec<Link>>>);

    impl Others {
        fn crew(&self) -> Crew {
            let others = self.clone();
            Crew::new(move || {
                let (line, other) = Link::pair().unwrap();
                others.0.borrow_mut().push(other);
                Some(Hired { line, process: None })
            })
        }

        fn count(&self) -> usize {
            self.0.borrow().len()
        }

        /// What a closer is told, and how many connections came with it.
        fn told(&self, closer: usize) -> (Task, usize) {
            let (task, fds) = self.0.borrow()[closer].receive().unwrap().unwrap();
            (task, fds.len())
        }

        fn is_told(&self, closer: usize) -> bool {
            let mut byte = [0; 1];
            polylane_sys::scm::peek(&self.0.borrow()[closer], &mut byte).is_ok()
        }

        /// The closer has closed all.
        fn free(&self, closer: usize, crew: &mut Crew) {
            self.0.borrow()[closer].send(&Said::Free, &[]).unwrap();
            assert!(crew.hear(closer as u64 + 1).is_none());
        }
    }

    fn connection() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    /// One that the service has let go of.
    fn close(crew: &mut Crew, account: u32, number: u64) {
        crew.hold(Account::User(account), number, connection());
        crew.let_go(number);
    }

    fn looks(crew: &mut Crew, account: u32) -> bool {
        crew.look(Account::User(account), &Question::none(0), Some(&connection()))
    }

    #[test]
    fn an_account_has_so_many_closers_and_the_others_have_some_left() {
        let others = Others::default();
        let mut crew = others.crew();
        // As if all of them never came back.
        for number in 0..100 {
            close(&mut crew, 7, number);
            assert!(looks(&mut crew, 7) == (number < 7), "{number}");
        }
        assert_eq!(others.count(), PER_ACCOUNT_MAX);
        let mut last = 0;
        for account in 100..140 {
            let had = others.count();
            (0..100).for_each(|_| {
                looks(&mut crew, account);
            });
            (0..100).for_each(|number| close(&mut crew, account, number));
            let has = others.count() - had;
            assert!((1..=PER_ACCOUNT_MAX).contains(&has), "{account}: {has}");
            last = has;
        }
        assert!(last >= 1 && others.count() < ALL_MAX);
        assert!(looks(&mut crew, 9) && others.count() <= ALL_MAX);
    }

    #[test]
    fn what_cannot_be_closed_now_is_held_by_one_and_closed_when_another_is_free() {
        let others = Others::default();
        let mut crew = others.crew();
        (0..PER_ACCOUNT_MAX as u64 + 3).for_each(|number| close(&mut crew, 7, number));
        let last = PER_ACCOUNT_MAX - 1;
        for closer in 0..last {
            assert_eq!(
                (others.told(closer), others.told(closer)),
                ((Task::Hold, 1), (Task::Close, 0))
            );
        }
        (0..4).for_each(|_| assert_eq!(others.told(last), (Task::Hold, 1)));
        assert!(!others.is_told(last));
        others.free(3, &mut crew);
        assert_eq!(others.told(last), (Task::Close, 0));
        // Nothing is closed that the service has as well.
        crew.hold(Account::User(7), 99, connection());
        crew.hold(Account::User(7), 100, connection());
        crew.let_go(99);
        (0..2).for_each(|_| assert_eq!(others.told(3), (Task::Hold, 1)));
        others.free(4, &mut crew);
        assert!(!others.is_told(3));
        crew.let_go(100);
        assert_eq!(others.told(3), (Task::Close, 0));
        assert_eq!(others.count(), PER_ACCOUNT_MAX);
    }

    #[test]
    fn a_closer_is_anothers_when_it_has_closed_all_and_some_that_have_nothing_end() {
        let others = Others::default();
        let mut crew = others.crew();
        for account in 1..=4 {
            assert!(looks(&mut crew, account));
        }
        assert_eq!(others.count(), 4);
        others.free(2, &mut crew);
        assert!(looks(&mut crew, 5) && others.count() == 4);
        (0..4).for_each(|closer| others.free(closer, &mut crew));
        assert_eq!(crew.awaited().count(), IDLE_MAX);
        assert!(looks(&mut crew, 6) && others.count() == 4);
    }

    #[test]
    fn a_closer_that_ends_gives_its_place_back_and_what_waits_gets_one() {
        let others = Others::default();
        let mut crew = others.crew();
        let all: usize = (0..1000).filter(|account| looks(&mut crew, *account)).count();
        assert_eq!((all, others.count()), (ALL_MAX, ALL_MAX));
        close(&mut crew, 2000, 1);
        crew.hold(Account::User(2001), 2, connection());
        assert_eq!(crew.waiting.len(), 2);
        let ends = |closer: usize, crew: &mut Crew| {
            let (_, other) = Link::pair().unwrap();
            others.0.borrow_mut()[closer] = other;
            assert!(crew.hear(closer as u64 + 1).is_none());
        };
        ends(0, &mut crew);
        assert_eq!(
            (others.told(ALL_MAX), others.told(ALL_MAX)),
            ((Task::Hold, 1), (Task::Close, 0))
        );
        ends(1, &mut crew);
        assert_eq!(others.told(ALL_MAX + 1), (Task::Hold, 1));
        assert!(!others.is_told(ALL_MAX + 1) && crew.waiting.is_empty());
        crew.let_go(2);
        assert_eq!(others.told(ALL_MAX + 1), (Task::Close, 0));
        assert!(!looks(&mut crew, 3000));
        crew.end();
        assert!(others.0.borrow()[ALL_MAX + 1].receive::<Task>().unwrap().is_none());
    }

    #[test]
    fn what_no_closer_could_be_started_for_is_held_when_one_can() {
        let others = Others::default();
        let fails = Rc::new(RefCell::new(true));
        let mut crew = others.crew();
        let (mut hire, failing) = (crew.hire, fails.clone());
        crew.hire = Box::new(move || if *failing.borrow() { None } else { hire() });
        close(&mut crew, 7, 1);
        crew.hold(Account::User(8), 2, connection());
        crew.try_again();
        assert_eq!((crew.waiting.len(), others.count()), (2, 0));
        *fails.borrow_mut() = false;
        crew.try_again();
        assert_eq!((crew.waiting.len(), others.count()), (0, 2));
        assert_eq!((others.told(0), others.told(0)), ((Task::Hold, 1), (Task::Close, 0)));
        assert_eq!(others.told(1), (Task::Hold, 1));
    }

    #[test]
    fn what_waits_at_the_end_is_held_by_one_beyond_the_limit_where_none_holds() {
        let others = Others::default();
        let mut crew = others.crew();
        let all = (0..1000).filter(|account| looks(&mut crew, *account)).count();
        assert_eq!(all, ALL_MAX);
        (0..3).for_each(|number| crew.hold(Account::User(2000), number, connection()));
        assert_eq!(crew.waiting.len(), 3);
        crew.end();
        assert_eq!(others.count(), ALL_MAX + 1);
        (0..3).for_each(|_| assert_eq!(others.told(ALL_MAX), (Task::Hold, 1)));
        assert!(others.0.borrow()[ALL_MAX].receive::<Task>().unwrap().is_none());
    }
}
