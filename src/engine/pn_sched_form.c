/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_sched_form.c - whose rows are in the next step?
 *
 * Of the model that has had the least time, everyone who decodes, then prompts; in the order in which they began, unless
 * there are more than a step has runs for: then those that had a turn go to the end.
 */
#include "engine/pn_sched_int.h"

PN_INTERNAL void pn_sched_count_peers(const pn_job *j, int more)
{
    pn_job *lists[] = {sched_queue(j)->work, sched_queue(j)->waiting};
    for (size_t i = 0; i < PN_COUNT_OF(lists); i++)
        for (pn_job *k = lists[i]; k; k = k->next)
            if (k->gen.p.client == j->gen.p.client)
                k->peers += (uint32_t)more;
}

static void sched_begin_job(pn_job *j)
{
    pn_queue *w = sched_queue(j);
    sched_take_out(&w->waiting, j);
    sched_append(&w->work, j);
    w->n_work++;
    w->n_ready--;
    j->begun = true;
    j->began_at = pn_os_now();
    pn_sched_count_peers(j, 1);
}

/* The oldest of the client that has the fewest under way; where all may begin, the oldest. */
static pn_job *sched_next(const pn_queue *w, bool all)
{
    pn_job *best = NULL;
    for (pn_job *j = w->waiting; j && !(best && (all || best->peers == 0)); j = j->next)
        if (!j->held && (!best || j->peers < best->peers))
            best = j;
    return best;
}

/* As many as the model's cap and the die's slots let begin do. */
static void sched_admit(pn_model *m)
{
    pn_queue *w = &m->queue;
    pn_mutex_lock(&m->lock);
    uint32_t cap = m->caps.concurrent ? m->caps.concurrent : UINT32_MAX;
    pn_mutex_unlock(&m->lock);
    cap = PN_MIN(cap, atomic_load(&m->dies[0]->slots));
    while (w->n_ready && w->n_work < cap)
        sched_begin_job(sched_next(w, cap == UINT32_MAX));
}

/* May the two be in one step?  One plan for all of its runs; pages say themselves of what type they are. */
static bool sched_fits(const pn_session *a, const pn_session *b)
{
    return a->model == b->model && a->plans[0] == b->plans[0];
}

PN_INTERNAL pn_job *pn_sched_first(pn_sched *q)
{
    pn_model *best = NULL;
    for (pn_model *m = q->models; m; m = m->queue.next)
        if ((m->queue.n_work || m->queue.n_ready) && (!best || m->queue.served < best->queue.served))
            best = m;
    if (!best)
        return NULL;
    sched_admit(best);
    return best->queue.work;
}

PN_INTERNAL pn_session *pn_sched_widest(pn_job *first)
{
    pn_session *s = first->s;
    for (pn_job *j = first; j; j = j->next)
        if (sched_fits(j->s, first->s) && j->s->n_batch > s->n_batch)
            s = j->s;
    return s;
}

static void sched_take(pn_sched *q, pn_job *j, uint32_t n)
{
    const pn_token *tokens;
    size_t wants = pn_gen_wants(&j->gen, &tokens);
    pn_session *s = j->s;
    q->runs[q->n_runs] = pn_session_run(s, n);
    q->runs[q->n_runs].row0 = q->n_rows;
    j->rows = n;
    q->wanted[q->n_runs] = n == wants;
    q->in[q->n_runs++] = j;
    q->n_rows += n;
    q->n_outs += n == wants;
}

PN_INTERNAL uint64_t pn_sched_bytes(uint64_t n_sessions, uint32_t n_batch, uint32_t n_vocab)
{
    uint64_t runs = PN_MIN(n_sessions, (uint64_t)SCHED_RUNS);
    return runs < 2 ? 0 : runs * (sizeof(float) * (uint64_t)n_vocab + sizeof(uint32_t)) + n_batch * sizeof(pn_token);
}

/* Exactly `need` elements, or what there was; the content is nobody's. */
static bool sched_grow(pn_mem *mem, void **ptr, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return true;
    void *p = pn_mem_calloc(mem, PN_ACCT_SCRATCH, need, size);
    if (!p)
        return false;
    pn_mem_free(mem, PN_ACCT_SCRATCH, *ptr, *cap * size);
    *ptr = p;
    *cap = need;
    return true;
}

/* Room for a step of `rows` rows and `runs` runs of a model, as far as there is memory. */
static uint32_t sched_room(pn_sched *q, uint32_t rows, uint32_t runs, uint32_t n_vocab)
{
    pn_mem *mem = pn_engine_mem(q->die->engine);
    runs = PN_MIN(runs, (uint32_t)SCHED_RUNS);
    if (runs < 2 || !sched_grow(mem, (void **)&q->tokens, &q->cap_rows, rows, sizeof *q->tokens) ||
        !sched_grow(mem, (void **)&q->out_rows, &q->cap_runs, runs, sizeof *q->out_rows))
        return 1;
    (void)sched_grow(mem, (void **)&q->logits, &q->cap_logits, (size_t)runs * n_vocab, sizeof *q->logits);
    return PN_MAX(1u, (uint32_t)PN_MIN(q->cap_logits / n_vocab, (size_t)runs));
}

/* Whoever had a turn goes behind those that had no place in the step. */
static void sched_turn(pn_sched *q, pn_queue *w)
{
    for (uint32_t i = 0; i < q->n_runs; i++) {
        sched_take_out(&w->work, q->in[i]);
        sched_append(&w->work, q->in[i]);
    }
}

/* One row for everyone who decodes, then prompts. */
PN_INTERNAL void pn_sched_fill(pn_sched *q, pn_job *first, uint32_t max_rows)
{
    const pn_token *tokens;
    uint32_t n = 0, prompts = 0, others = 0;
    for (pn_job *j = first; j; j = j->next) {
        n += sched_fits(j->s, first->s);
        prompts += sched_fits(j->s, first->s) && j->gen.in_prompt;
        others += !sched_fits(j->s, first->s);
    }
    uint32_t max_runs = PN_MIN(sched_room(q, max_rows, n, first->s->model->desc.n_vocab), max_rows);
    uint32_t places = max_runs;         /* for the first of the list, whatever they do: prompts do not wait for decoders to end */
    for (pn_job *j = first; j && places; j = j->next) {
        if (!sched_fits(j->s, first->s) || !pn_gen_wants(&j->gen, &tokens))
            continue;
        places--;
        if (!j->gen.in_prompt)
            sched_take(q, j, 1);
    }
    uint32_t room = max_rows - q->n_rows;
    if (q->n_runs)
        room = PN_MIN(room, (uint32_t)SCHED_CHUNK);
    places = max_runs;
    for (pn_job *j = first; j && room && places; j = j->next) {
        size_t wants = pn_gen_wants(&j->gen, &tokens);
        if (!sched_fits(j->s, first->s) || !wants)
            continue;
        places--;
        if (!j->gen.in_prompt)
            continue;
        uint32_t share = PN_MAX(room / prompts, (uint32_t)SCHED_SHARE);        /* what one leaves is for the next */
        uint32_t rows = (uint32_t)PN_MIN(PN_MIN(wants, (size_t)PN_MIN(room, share)), (size_t)j->s->n_batch);
        sched_take(q, j, rows);
        room -= rows;
        prompts -= prompts > 1;
    }
    if (others || n > max_runs)
        sched_turn(q, &first->s->model->queue);
}

/* One run's tokens lie side by side already. */
PN_INTERNAL pn_step pn_sched_step(pn_sched *q)
{
    pn_step step = {.n_rows = q->n_rows, .runs = q->runs, .n_runs = q->n_runs, .n_outs = q->n_outs};
    const pn_token *tokens;
    uint32_t k = 0;
    if (q->n_runs == 1) {
        pn_session *s = q->in[0]->s;
        pn_gen_wants(&q->in[0]->gen, &tokens);
        s->out_rows[0] = q->n_rows - 1;
        step.tokens = tokens;
        step.out_rows = s->out_rows;
        step.logits = s->logits;
        return step;
    }
    for (uint32_t i = 0; i < q->n_runs; i++) {
        const pn_job *j = q->in[i];
        pn_gen_wants(&j->gen, &tokens);
        memcpy(q->tokens + q->runs[i].row0, tokens, j->rows * sizeof *tokens);
        if (q->wanted[i])
            q->out_rows[k++] = q->runs[i].row0 + j->rows - 1;
    }
    step.tokens = q->tokens;
    step.out_rows = q->out_rows;
    step.logits = q->logits;
    return step;
}
