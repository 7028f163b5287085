/* SPDX-License-Identifier: AGPL-3.0-only */
#include "serve/pn_lane.h"

static void lane_push(pn_task ***end, pn_task *t)
{
    t->next = NULL;
    **end = t;
    *end = &t->next;
}

static pn_task *lane_pop(pn_task **head, pn_task ***end)
{
    pn_task *t = *head;
    if (t && !(*head = t->next))
        *end = head;
    return t;
}

static void lane_main(void *user)
{
    pn_lane *l = user;
    pn_mutex_lock(&l->lock);
    while (!l->stop) {
        pn_task *t = lane_pop(&l->todo, &l->todo_end);
        if (!t) {
            pn_cond_wait(&l->work, &l->lock);
            continue;
        }
        pn_mutex_unlock(&l->lock);
        t->run(t);
        pn_mutex_lock(&l->lock);
        lane_push(&l->finished_end, t);
        l->wake(l->user);
    }
    pn_mutex_unlock(&l->lock);
}

PN_INTERNAL void pn_lane_open(pn_lane *l, bool threaded, void (*wake)(void *user), void *user)
{
    memset(l, 0, sizeof *l);
    pn_mutex_init(&l->lock);
    pn_cond_init(&l->work);
    l->todo_end = &l->todo;
    l->finished_end = &l->finished;
    l->wake = wake;
    l->user = user;
    l->threaded = threaded && pn_thread_start(&l->thread, lane_main, l);
}

PN_INTERNAL void pn_lane_close(pn_lane *l)
{
    if (l->threaded) {
        pn_mutex_lock(&l->lock);
        l->stop = true;
        pn_cond_broadcast(&l->work);
        pn_mutex_unlock(&l->lock);
        pn_thread_join(&l->thread);
    }
    pn_cond_fini(&l->work);
    pn_mutex_fini(&l->lock);
}

PN_INTERNAL void pn_lane_add(pn_lane *l, pn_task *t)
{
    pn_mutex_lock(&l->lock);
    lane_push(&l->todo_end, t);
    pn_cond_broadcast(&l->work);
    pn_mutex_unlock(&l->lock);
    if (!l->threaded)
        l->wake(l->user);
}

PN_INTERNAL void pn_lane_done(pn_lane *l)
{
    for (;;) {
        pn_mutex_lock(&l->lock);
        pn_task *t = lane_pop(&l->finished, &l->finished_end);
        pn_task *mine = t || l->threaded ? NULL : lane_pop(&l->todo, &l->todo_end);
        pn_mutex_unlock(&l->lock);
        if (!t && !mine)
            return;
        if (mine)
            mine->run(mine);
        t = t ? t : mine;
        t->done(t);
    }
}
