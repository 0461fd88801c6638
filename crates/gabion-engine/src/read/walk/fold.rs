//! Keys whose newest visible entry is an operand of the merge operator: what they have follows from older ones too.

use super::*;
use crate::merge::Merge;
use core::ops::ControlFlow;

/// What older entries of a key come to: nothing yet, or what operands are added to, with what is stored of it.
type Met = ControlFlow<(Base, Option<(Trailer, Bytes)>)>;

impl ReadPoint {
    /// The value of an engine key that was added to.
    pub(in crate::read) async fn fold<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        key: &[u8],
        check: &impl Fn() -> Result<()>,
    ) -> Result<Option<Stored>> {
        let mut folding = Folding::new(None);
        loop {
            let met = self.meet(shape, tables, key, &mut folding, check).await?;
            let (base, stored) = met.break_value().unwrap_or((Base::Absent, None));
            match folding.end(base) {
                Folded::Is(folded) => return self.found(folded, stored),
                Folded::Again(at_ms) => folding = Folding::new(Some(at_ms)),
            }
        }
    }

    /// Takes the entries of a key from new to old, until one is no operand.
    async fn meet<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        key: &[u8],
        folding: &mut Folding,
        check: &impl Fn() -> Result<()>,
    ) -> Result<Met> {
        for table in &shape.memtables {
            let hidden_below = table.range_delete_of(key, self.sequence);
            let mut entries = table.iter();
            entries.seek(key, self.sequence);
            while let Some(entry) = entries.entry().filter(|entry| entry.key == key) {
                if Some(entry.trailer.sequence()) < hidden_below {
                    break;
                }
                let bytes = || Bytes::copy_from_slice(entry.value);
                let met = self.take(folding, key, entry.trailer, entry.value, bytes)?;
                if met.is_break() {
                    return Ok(met);
                }
                entries.advance();
            }
            if hidden_below.is_some() {
                return Ok(Met::Break((Base::Absent, None)));
            }
        }
        let hash = key_hash(key);
        for file in shape.version.files_for(key) {
            let mut at = self.sequence;
            while let Some((trailer, value)) = tables.get(file, key, hash, at).await? {
                let met = self.take(folding, key, trailer, &value, || value.clone())?;
                if met.is_break() {
                    return Ok(met);
                }
                check()?;
                let Some(before) = trailer.sequence().get().checked_sub(1) else { break };
                at = SequenceNumber(before);
            }
            check()?;
        }
        Ok(Met::Continue(()))
    }

    /// Takes the next older entry.
    fn take(
        &self,
        folding: &mut Folding,
        key: &[u8],
        trailer: Trailer,
        stored: &[u8],
        bytes: impl FnOnce() -> Bytes,
    ) -> Result<Met> {
        if self.is_cleared(key, trailer.sequence()) {
            return Ok(Met::Break((Base::Absent, None)));
        }
        match trailer.kind() {
            EntryKind::Merge => {
                folding.push_older(Operand::decode(stored)?);
                Ok(Met::Continue(()))
            }
            kind if is_base(kind) => {
                let base = Base::of(trailer, stored)?;
                let is_value = !matches!(base, Base::Absent);
                Ok(Met::Break((base, is_value.then(|| (trailer, bytes())))))
            }
            kind => Err(reserved(kind, trailer.sequence())),
        }
    }

    /// A value that was added to. `stored` is that which it was added to.
    fn found(&self, folded: Base, stored: Option<(Trailer, Bytes)>) -> Result<Option<Stored>> {
        let expires_ms = folded.expires_ms();
        let value = match (folded, stored) {
            (Base::Number { number, .. }, _) => number_bytes(number),
            (Base::Other { .. }, Some((trailer, stored))) if trailer.kind().is_pointer() => {
                let apart = Stored::Apart(apart(trailer, &stored)?);
                return Ok(self.is_there(expires_ms).then_some(apart));
            }
            (Base::Other { .. }, Some((trailer, stored))) if trailer.kind().is_packed() => {
                let found = Found { value: stored.slice(value_at(expires_ms)..), expires_ms };
                let packed = Stored::Packed(PackedFound::new(trailer, found)?);
                return Ok(self.is_there(expires_ms).then_some(packed));
            }
            (Base::Other { .. }, Some((_, stored))) => stored.slice(value_at(expires_ms)..),
            (Base::Other { .. } | Base::Absent, _) => return Ok(None),
        };
        Ok(self.is_there(expires_ms).then_some(Stored::Here(Found { value, expires_ms })))
    }

    fn is_there(&self, expires_ms: Option<u64>) -> bool {
        expires_ms.is_none_or(|at| at > self.now_ms)
    }
}

impl<S: FileSource + Clone, C: ReadCache + Clone> Walk<S, C> {
    /// To the pair whose newest visible entry, an operand, is on top; false if its key has no value. The cursors
    /// have then passed the operands.
    pub(super) async fn fold_forwards(
        &mut self,
        cursors: &mut Cursors<S, C>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<bool> {
        let hidden_below = cursors.hidden_below();
        let merge = &mut cursors.merge;
        let mut folding = Folding::new(None);
        loop {
            let base = self.pass_operands(merge, hidden_below, &mut folding, check).await?;
            match folding.end(base) {
                Folded::Is(Base::Other { expires_ms }) => {
                    self.held = merge.cursor().map_or(Held::Nothing, Source::hold);
                    self.alive = Alive { expires_ms, value_at: value_at(expires_ms) };
                    self.place = Place::Pair;
                    self.way = Way::Past;
                    let is_there = self.point.is_there(expires_ms);
                    let base = merge.entry().filter(|base| is_elsewhere(base.trailer.kind()));
                    if let Some(base) = base.filter(|_| is_there) {
                        self.want_of(base.trailer, base.value)?;
                    }
                    return Ok(is_there);
                }
                Folded::Is(folded) => {
                    self.way = Way::Past;
                    return Ok(self.stand_at_number(folded));
                }
                Folded::Again(at_ms) => folding = Folding::new(Some(at_ms)),
            }
            for cursor in merge.cursors_mut() {
                cursor.seek(&self.key).await?;
                check()?;
            }
            merge.restart::<false>();
        }
    }

    /// Passes the visible operands of the key here, and gives what they are added to, which is then on top if there is
    /// any.
    async fn pass_operands(
        &mut self,
        merge: &mut Merge<Source<S, C>>,
        hidden_below: SequenceNumber,
        folding: &mut Folding,
        check: &impl Fn() -> Result<()>,
    ) -> Result<Base> {
        while let Some(entry) = merge.entry().filter(|entry| entry.key == &self.key[..]) {
            if entry.trailer.sequence() < hidden_below {
                return Ok(Base::Absent);
            }
            if entry.trailer.sequence() <= self.point.sequence {
                let none = Bytes::new;
                let met = self.point.take(folding, entry.key, entry.trailer, entry.value, none)?;
                if let ControlFlow::Break((base, _)) = met {
                    return Ok(base);
                }
            }
            merge.advance().await?;
            check()?;
            self.count_passed();
        }
        Ok(Base::Absent)
    }

    /// What the key here has after one more operand, going from old to new: `newest` is the last entry that was none,
    /// and its value is held; `folded` what operands since have made of it.
    pub(super) fn fold_one(
        &self,
        sequence: SequenceNumber,
        operand: Operand,
        newest: Option<Trailer>,
        folded: Option<Base>,
    ) -> Result<Base> {
        if self.point.is_cleared(&self.key, sequence) {
            return Ok(Base::Absent);
        }
        let base = match (folded, newest) {
            (Some(folded), _) => folded,
            (None, None) => Base::Absent,
            (None, Some(newest)) if self.point.is_cleared(&self.key, newest.sequence()) => {
                Base::Absent
            }
            (None, Some(newest)) if is_base(newest.kind()) => {
                Base::of(newest, self.held.value().unwrap_or_default())?
            }
            (None, Some(newest)) => return Err(reserved(newest.kind(), newest.sequence())),
        };
        Ok(base.with(operand))
    }

    /// To the pair of the key here, if what was folded is a number that is there.
    pub(super) fn stand_at_number(&mut self, folded: Base) -> bool {
        let Base::Number { number, expires_ms } = folded else { return false };
        if !self.point.is_there(expires_ms) {
            return false;
        }
        self.held = Held::Block(number_bytes(number));
        self.alive = Alive { expires_ms, value_at: 0 };
        self.place = Place::Pair;
        true
    }
}

/// Whether operands can be added to what such an entry leaves.
const fn is_base(kind: EntryKind) -> bool {
    let is_value = matches!(kind, EntryKind::Put | EntryKind::ExpiringPut) || is_elsewhere(kind);
    kind.is_delete() || is_value
}

/// Where a value begins in what is stored of it.
const fn value_at(expires_ms: Option<u64>) -> usize {
    if expires_ms.is_some() { EXPIRY_LEN } else { 0 }
}

fn number_bytes(number: i64) -> Bytes {
    Bytes::from(stored_number(number, None).1)
}
